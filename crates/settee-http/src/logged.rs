//! Escapes text from requests for the log: one line of limited length without control characters. It is
//! logged as a quoted string, so it can't imitate another field.

/// Maximum bytes of a name in the log.
const NAME_BYTES_MAX: usize = 128;

/// Maximum bytes of a path, or of a reason that may contain names, in the log.
const TEXT_BYTES_MAX: usize = 1024;

/// Escapes a name from a request: of a user, a section or a key.
pub(crate) fn name(name: &str) -> String {
    shown(name, NAME_BYTES_MAX)
}

/// Escapes a path, or a text that may contain names.
pub(crate) fn text(text: &str) -> String {
    shown(text, TEXT_BYTES_MAX)
}

/// The beginning of a text, with unprintable characters escaped. The limit includes the escapes.
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
    fn control_characters_are_escaped() {
        let forged = "ann\nINFO forged\r\t\u{1b}[2J\u{9b}\u{7f}\u{2028}\u{202e}\\n\"'é";
        let shown = "ann\\nINFO forged\\r\\t\\u{1b}[2J\\u{9b}\\u{7f}\\u{2028}\\u{202e}\\\\n\"'é";
        assert_eq!(name(forged), shown);
    }

    #[test]
    fn a_name_is_truncated_to_128_bytes_with_escapes_and_between_characters() {
        assert_eq!(name(&"x".repeat(128)), "x".repeat(128));
        assert_eq!(name(&"x".repeat(129)), "x".repeat(128) + "…");
        assert_eq!(name(&"\n".repeat(1000)), "\\n".repeat(64) + "…");
        assert_eq!(name(&("x".to_owned() + &"é".repeat(100))), "x".to_owned() + &"é".repeat(63) + "…");
        assert_eq!(text(&"x".repeat(2000)).len(), 1024 + '…'.len_utf8());
    }
}
