//! A pool of a design document's map functions: as many instances as groups are mapped at once.

use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::mapper::{Mapped, Mapper};

/// Makes an instance of the functions.
pub(crate) type MakeMapper = Box<dyn Fn() -> Result<Box<dyn Mapper>> + Send + Sync>;

/// Idle instances kept for the next group.
const IDLE_COUNT_MAX: usize = 4;

/// The map functions of a design document, for any number of threads.
pub(crate) struct Mappers {
    make: MakeMapper,
    idle: Mutex<Vec<Box<dyn Mapper>>>,
}

impl Mappers {
    pub(crate) fn new(make: MakeMapper) -> Mappers {
        Mappers { make, idle: Mutex::default() }
    }

    /// See [`Mapper::map`].
    ///
    /// # Errors
    /// If the functions can't be compiled.
    pub(crate) fn map(&self, documents: &[&[u8]]) -> Result<Vec<Vec<Mapped>>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut mapper = match idle {
            Some(mapper) => mapper,
            None => (self.make)()?,
        };
        let mapped = mapper.map(documents);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(mapper);
        }
        Ok(mapped)
    }

    /// Releases the idle instances' memory.
    pub(crate) fn release(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
