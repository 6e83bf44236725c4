//! What a client asks of a write before it is answered.

use hyper::StatusCode;
use settee_doc::Stage;

/// The durability that a write must reach before it is answered, and the copies the client asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteConcern {
    pub(crate) stage: Stage,
    /// `w`, the number of copies the client asked for. There is one copy; for a higher number the status is
    /// 202, as in a cluster with too few nodes, although the write has reached its stage.
    pub(crate) copies: u64,
}

impl WriteConcern {
    /// `done`, or 202 if the write reached less than `Persisted` or fewer copies than asked for.
    pub(crate) fn status(&self, done: StatusCode) -> StatusCode {
        match self.stage == Stage::Persisted && self.copies <= 1 {
            true => done,
            false => StatusCode::ACCEPTED,
        }
    }
}
