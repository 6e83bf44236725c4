//! Builds of a view of one `emit`, beside reading the documents' values alone.

use super::archive::View;
use super::bench::{Bench, against_recorded, row};
use crate::drive::scan_stream;
use crate::error::{Error, Result};
use crate::report::{Bound, Row};
use crate::rounds::Window;
use crate::stats::{Samples, Stopwatch};

/// Rate of builds recorded of CouchDB, in documents of 1 KiB per second.
const RECORDED_BUILD: f64 = 10_500.0;

/// Aims: smallest ratio to the recorded rate of a build without a JavaScript engine, and with one.
const PLAIN_RATIO_MIN: f64 = 40.0;
const ENGINE_RATIO_MIN: f64 = 15.0;

/// Aim: smallest ratio of a build without an engine to reading the values alone.
const VALUES_SHARE_MIN: f64 = 0.5;

impl Bench<'_> {
    pub(super) async fn builds(&mut self, each: &mut (dyn FnMut(Row) + Send)) -> Result<()> {
        // The first reading warms the page cache.
        self.read_values().await?;
        let values = self.read_values().await?;
        let rate = values.rate();
        each(row("all values alone: _changes with include_docs", "docs/s", values));
        let plain = self.build_of("build, one emit: needs no JavaScript engine", &View::small()).await?;
        let share = plain.rate.map(|built| built / rate);
        let plain = against_recorded(plain, RECORDED_BUILD, Bound::AtLeast(PLAIN_RATIO_MIN));
        each(plain.compare("× all values alone", share, Bound::AtLeast(VALUES_SHARE_MIN)));
        let name = "build, one emit and a regular expression: needs the engine";
        let engine = self.build_of(name, &View::engine()).await?;
        each(against_recorded(engine, RECORDED_BUILD, Bound::AtLeast(ENGINE_RATIO_MIN)));
        Ok(())
    }

    /// Reads all documents in the order of their changes.
    async fn read_values(&mut self) -> Result<Window> {
        let archive = self.archive().await?;
        self.settle().await;
        let stopwatch = Stopwatch::start(self.target.pid);
        let connection = self.couch.stream(&format!("{}/_changes?include_docs=true", archive.path)).await?;
        let ([documents], _) = scan_stream(connection, [b"\"body\":\""]).await?;
        let window = Window::new(documents, Samples::default(), stopwatch.read());
        match documents == archive.count {
            true => Ok(window),
            false => Err(Error::wrong("all values", format!("{documents} documents of {}", archive.count))),
        }
    }
}
