//! Options of a server's indexes.

use settee_js::Limits;

/// Options of a server's indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewsOptions {
    /// Bytes of index nodes that are cached; default 64 MiB.
    pub cache_bytes_max: usize,
    /// Bytes of mapped rows that are merged into the indexes at once; default 32 MiB.
    pub merge_bytes: usize,
    /// Number of indexes that stay open while nobody uses them; default 1,000. At most a quarter of the limit on open
    /// files applies.
    pub open_indexes_max: usize,
    /// Memory of a JavaScript context in bytes; default 64 MiB.
    pub javascript_bytes_max: usize,
    /// Ticks that a JavaScript function may use for one document: see [`settee_js::Limits`].
    pub javascript_ticks_max: u64,
    /// Whether indexes are built in the background after writes; default true.
    pub autoupdate: bool,
}

impl Default for ViewsOptions {
    fn default() -> ViewsOptions {
        let Limits { memory_bytes, ticks, .. } = Limits::default();
        ViewsOptions {
            cache_bytes_max: 64 << 20,
            merge_bytes: 32 << 20,
            open_indexes_max: 1_000,
            javascript_bytes_max: memory_bytes,
            javascript_ticks_max: ticks,
            autoupdate: true,
        }
    }
}

impl ViewsOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.javascript_bytes_max,
            ticks: self.javascript_ticks_max,
            ..Limits::default()
        }
    }
}
