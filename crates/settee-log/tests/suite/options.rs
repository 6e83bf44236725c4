//! Goal: contradictory options are reported by name, in words, before anything is opened.
//! Method: set one default at a time just beyond its limit, and exactly to it.

use settee_log::{BATCH_SIZE_MAX, LogOptions, SEGMENT_BYTES_LIMIT};

const POOL_BYTES_MAX: usize = 64 << 20;
const DEFAULT: LogOptions = LogOptions::DEFAULT;

/// The name in the error, or the empty string.
fn refused(options: LogOptions, buffer_pool_bytes_max: usize) -> String {
    match options.check(buffer_pool_bytes_max) {
        Ok(()) => String::new(),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(error.name) && text.contains(&error.value.to_string()), "{text}");
            error.name.to_owned()
        }
    }
}

#[test]
fn the_defaults_are_consistent() {
    assert_eq!(refused(DEFAULT, POOL_BYTES_MAX), "");
}

#[test]
fn each_limit_is_refused_beyond_its_bound_and_accepted_at_it() {
    let cases: [(&str, LogOptions, LogOptions); 6] = [
        (
            "batch_bytes_max",
            LogOptions { batch_bytes_max: BATCH_SIZE_MAX + 1, ..DEFAULT },
            LogOptions { batch_bytes_max: BATCH_SIZE_MAX, ..DEFAULT },
        ),
        (
            "segment_bytes_max",
            LogOptions { segment_bytes_max: 2 * BATCH_SIZE_MAX as u32, ..DEFAULT },
            LogOptions { segment_bytes_max: 2 * BATCH_SIZE_MAX as u32 + 4096, ..DEFAULT },
        ),
        (
            "segment_bytes_max",
            LogOptions { segment_bytes_max: SEGMENT_BYTES_LIMIT + 1, ..DEFAULT },
            LogOptions { segment_bytes_max: SEGMENT_BYTES_LIMIT, ..DEFAULT },
        ),
        (
            "buffer_bytes_min",
            LogOptions { buffer_bytes_min: DEFAULT.buffer_bytes_max + 1, ..DEFAULT },
            LogOptions { buffer_bytes_min: DEFAULT.buffer_bytes_max, ..DEFAULT },
        ),
        (
            "writes_in_flight_max",
            LogOptions { writes_in_flight_max: 0, ..DEFAULT },
            LogOptions { writes_in_flight_max: 1, ..DEFAULT },
        ),
        (
            "recycled_percent_max",
            LogOptions { recycled_percent_max: 101, ..DEFAULT },
            LogOptions { recycled_percent_max: 100, ..DEFAULT },
        ),
    ];
    for (name, past, at) in cases {
        assert_eq!(refused(past, POOL_BYTES_MAX), name);
        assert_eq!(refused(at, POOL_BYTES_MAX), "");
    }
}

#[test]
fn the_pool_holds_the_largest_buffer() {
    // The largest batch and a header: the next power of two after 16 MiB.
    assert_eq!(refused(DEFAULT, 32 << 20), "");
    assert_eq!(refused(DEFAULT, (32 << 20) - 1), "buffer_pool_bytes_max");
    let large = LogOptions { buffer_bytes_max: (64 << 20) + 1, ..DEFAULT };
    assert_eq!(refused(large, POOL_BYTES_MAX), "buffer_pool_bytes_max");
    assert_eq!(refused(large, 128 << 20), "");
    let endless = LogOptions { buffer_bytes_max: usize::MAX, ..DEFAULT };
    assert_eq!(refused(endless, usize::MAX - 1), "buffer_pool_bytes_max");
}
