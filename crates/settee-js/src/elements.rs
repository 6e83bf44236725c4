//! The elements of a JSON array as slices of its text, without parsing them.

/// Iterates over the elements of a JSON array that the engine wrote: valid and without white space.
/// On other text it ends early and never panics.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Elements<'a> {
    /// `array` includes its brackets.
    pub(crate) fn of(array: &'a str) -> Elements<'a> {
        let inner = array.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        Elements { text: inner.unwrap_or(""), at: 0 }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.at >= self.text.len() {
            return None;
        }
        let end = element_end(self.text.as_bytes(), self.at);
        let element = self.text.get(self.at..end)?;
        self.at = end + 1;
        Some(element)
    }
}

/// The position after the element that begins at `at`: a comma's or the end of the text.
fn element_end(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0usize;
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            _ => (),
        }
        at += 1;
    }
    text.len()
}

/// The position of the quote that closes the string that begins at `at`.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}
