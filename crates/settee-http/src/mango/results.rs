//! The results of a search, as they are written, and what its response says about them.

use std::time::Instant;

use settee_view::mango::limits::EXAMINED_PER_RESULT_MAX;
use settee_view::mango::{Bookmark, FindRequest, Plan};

/// The warning about many documents examined for few results.
const INEFFICIENT: &str = "The number of documents examined is high in proportion to the number of results \
                           returned. Consider adding a more specific index to improve this.";

/// How far a search has got.
pub(super) struct Progress {
    begun: Instant,
    /// Results still to write.
    left: u64,
    /// Results still to leave out.
    skip: u64,
    keys_examined: u64,
    docs_examined: u64,
    returned: u64,
    /// The last row that matched.
    last: Option<Bookmark>,
}

impl Progress {
    pub(super) fn of(request: &FindRequest) -> Progress {
        let (left, skip) = (request.limit, request.skip);
        let (keys_examined, docs_examined, returned, last) = (0, 0, 0, None);
        Progress { begun: Instant::now(), left, skip, keys_examined, docs_examined, returned, last }
    }

    /// Whether more results are wanted.
    pub(super) fn wants_more(&self) -> bool {
        self.left > 0
    }

    /// Number of matching rows still wanted.
    pub(super) fn rows_wanted(&self) -> u64 {
        self.left.saturating_add(self.skip)
    }

    pub(super) fn examined_key(&mut self) {
        self.keys_examined += 1;
    }

    pub(super) fn examined_document(&mut self) {
        self.docs_examined += 1;
    }

    /// Records a matching row. Returns whether it is written.
    pub(super) fn takes(&mut self, row: Bookmark) -> bool {
        self.last = Some(row);
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.left -= 1;
        self.returned += 1;
        true
    }

    /// Appends what comes before a result's text.
    pub(super) fn begin_result(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.returned == 1 { b"\r\n" } else { b",\r\n" });
    }

    /// Appends the members after the results, and the end of the response.
    pub(super) fn write_end(&self, request: &FindRequest, plan: &Plan, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n],\r\n\"bookmark\": ");
        settee_doc::write_json_string(&Bookmark::shown(self.last.as_ref(), request, plan), out);
        if request.execution_stats {
            out.extend_from_slice(self.statistics(request).as_bytes());
        }
        let mut warnings: Vec<&str> = plan.warnings.iter().map(String::as_str).collect();
        if self.docs_examined > EXAMINED_PER_RESULT_MAX.saturating_mul(self.returned.max(1)) {
            warnings.push(INEFFICIENT);
        }
        if !warnings.is_empty() {
            out.extend_from_slice(b",\r\n\"warning\": ");
            settee_doc::write_json_string(&warnings.join("\n"), out);
        }
        out.extend_from_slice(b"}\r\n");
    }

    fn statistics(&self, request: &FindRequest) -> String {
        // A read of several copies counts apart.
        let (docs, quorum_docs) = match request.copies {
            0 | 1 => (self.docs_examined, 0),
            _ => (0, self.docs_examined),
        };
        format!(
            ",\r\n\"execution_stats\": {{\"total_keys_examined\":{},\"total_docs_examined\":{docs},\
             \"total_quorum_docs_examined\":{quorum_docs},\"results_returned\":{},\"execution_time_ms\":{:.3}}}",
            self.keys_examined,
            self.returned,
            self.begun.elapsed().as_secs_f64() * 1000.0,
        )
    }
}
