//! Full reads and ranges of a view of small rows, whose keys are the numbers from 0.

use std::sync::Arc;

use super::archive::{Archive, View};
use super::asker::{Ask, Question};
use super::bench::{Bench, RANGE_BESIDE_P99_MS_MAX, RANGE_P50_MS_MAX, against_recorded, judge_latency};
use crate::error::{Error, Result};
use crate::report::{Bound, Row, figure};

/// Figures recorded of CouchDB: rows per second of a full read; ranges of 100 rows per second by one client, and
/// their median latency in milliseconds.
const RECORDED_FULL_READ: f64 = 154_000.0;
const RECORDED_RANGES: f64 = 717.0;
const RECORDED_RANGE_P50_MS: f64 = 1.3;

/// Aims of a full read: smallest ratio to the recorded rate, and smallest rate.
const FULL_READ_RATIO_MIN: f64 = 10.0;
const FULL_READ_RATE_MIN: f64 = 1.5e6;

/// Largest row in bytes for which the rate of a full read was recorded and has an aim.
const ROW_BYTES_MAX: f64 = 100.0;

impl Bench<'_> {
    pub(super) async fn reads(&mut self, each: &mut (dyn FnMut(Row) + Send)) -> Result<()> {
        let (archive, view) = (self.archive().await?, View::small());
        self.ensure(&view).await?;
        let full = self.full_read("full read, small rows", &archive.view(&view), archive.count).await?;
        let row_bytes = full.compared.last().and_then(|compared| compared.figure);
        if row_bytes.is_none_or(|bytes| bytes > ROW_BYTES_MAX) {
            return Err(Error::wrong("full read", format!("rows of {row_bytes:?} bytes")));
        }
        let rate = full.rate;
        let full = against_recorded(full, RECORDED_FULL_READ, Bound::AtLeast(FULL_READ_RATIO_MIN));
        each(full.compare("rows/s in all", rate, Bound::AtLeast(FULL_READ_RATE_MIN)));

        let row =
            self.ask("range of 100 rows, 1 client", "requests/s", 1, &ranges(&archive, &view, 100)).await?;
        let p50 = row.p50_us.map(|us| us / 1e3 / RECORDED_RANGE_P50_MS);
        let name = format!("× its recorded p50 of {} ms", figure(RECORDED_RANGE_P50_MS));
        each(against_recorded(row, RECORDED_RANGES, None).compare(name, p50, None));

        let ask = ranges(&archive, &view, 10);
        let row = self.ask("range of 10 rows, 1 client", "requests/s", 1, &ask).await?;
        each(judge_latency(row, Some(RANGE_P50_MS_MAX), None));
        let (name, other) =
            ("range of 10 rows, 1 client, while an index is built", View::mail_beside("small-rows"));
        let row = self.ask_beside_build(name, 1, &ask, &other).await?;
        each(judge_latency(row, None, Some(RANGE_BESIDE_P99_MS_MAX)));
        Ok(())
    }
}

/// Ranges of `rows` rows from random keys.
fn ranges(archive: &Archive, view: &View, rows: u64) -> Ask {
    let (path, count) = (archive.view(view), archive.count);
    Arc::new(move |generator| {
        let first = generator.below(count - rows + 1);
        Question::get(format!("{path}?startkey={first}&limit={rows}"))
            .expect(format!("\"total_rows\":{count},"))
            .expect(format!("\"key\":{first},"))
            .expect(format!("\"key\":{},", first + rows - 1))
            .expect_count("\"id\":\"", rows)
    })
}
