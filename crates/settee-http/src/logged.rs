//! Text from requests as the log shows it: on one line, with nothing that a terminal acts on, and
//! of limited length. It is logged as a string, which is quoted: no name passes for another field.

/// Bytes that are shown of a name.
const NAME_BYTES_MAX: usize = 128;

/// Bytes that are shown of a path, or of a reason that may hold names.
const TEXT_BYTES_MAX: usize = 1024;

/// A name that a request gave: of a user, a section, a key.
pub(crate) fn name(name: &str) -> String {
    shown(name, NAME_BYTES_MAX)
}

/// A path, or a text that may hold names.
pub(crate) fn text(text: &str) -> String {
    shown(text, TEXT_BYTES_MAX)
}

/// The beginning of a text, with escapes for what can't be printed. The escapes count.
fn shown(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        let before = shown.len();
        match char {
            '"' | '\'' => shown.push(char),
            char => shown.extend(char.escape_debug()),
        }
        if shown.len() > bytes_max {
            shown.truncate(before);
            shown.push('…');
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_begin_a_line_or_move_a_cursor_is_escaped() {
        let forged = "ann\nINFO forged\r\t\u{1b}[2J\u{9b}\u{7f}\u{2028}\u{202e}\\n\"'é";
        let shown = "ann\\nINFO forged\\r\\t\\u{1b}[2J\\u{9b}\\u{7f}\\u{2028}\\u{202e}\\\\n\"'é";
        assert_eq!(name(forged), shown);
    }

    #[test]
    fn a_name_is_cut_to_128_bytes_escapes_included_and_never_within_a_character() {
        assert_eq!(name(&"x".repeat(128)), "x".repeat(128));
        assert_eq!(name(&"x".repeat(129)), "x".repeat(128) + "…");
        assert_eq!(name(&"\n".repeat(1000)), "\\n".repeat(64) + "…");
        assert_eq!(name(&("x".to_owned() + &"é".repeat(100))), "x".to_owned() + &"é".repeat(63) + "…");
        assert_eq!(text(&"x".repeat(2000)).len(), 1024 + '…'.len_utf8());
    }
}
