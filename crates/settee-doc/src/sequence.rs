//! Positions in a database's changes, as clients see them: `N-opaque`, where the opaque part identifies the
//! database's incarnation.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use settee_store::Seq;

use crate::{Error, Result};

/// Encodes and decodes the positions of one database.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The dash and the opaque part.
    suffix: String,
}

impl Sequence {
    pub(crate) fn new(incarnation: &[u8; 16]) -> Sequence {
        Sequence { suffix: format!("-{}", URL_SAFE_NO_PAD.encode(incarnation)) }
    }

    pub(crate) fn write(&self, seq: Seq, out: &mut Vec<u8>) {
        out.extend_from_slice(itoa::Buffer::new().format(seq.0).as_bytes());
        out.extend_from_slice(self.suffix.as_bytes());
    }

    pub(crate) fn text(&self, seq: Seq) -> String {
        format!("{}{}", seq.0, self.suffix)
    }

    /// A position with another incarnation's opaque part means the start of the changes.
    pub(crate) fn parse(&self, text: &str) -> Result<Seq> {
        let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(end);
        let malformed =
            || Error::bad_request(format!("Malformed sequence supplied in 'since' parameter: {text}"));
        let number = digits.parse().map_err(|_| malformed())?;
        if suffix == self.suffix {
            return Ok(Seq(number));
        }
        let is_opaque = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=' | b'.');
        let well_formed = match suffix.strip_prefix('-') {
            Some(opaque) => !opaque.is_empty() && opaque.bytes().all(is_opaque),
            None => suffix.is_empty(),
        };
        if !well_formed {
            return Err(malformed());
        }
        Ok(Seq(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_position_round_trips_and_a_foreign_one_means_the_start() {
        let ours = Sequence::new(&[1; 16]);
        let theirs = Sequence::new(&[2; 16]);
        assert_eq!(ours.parse(&ours.text(Seq(42))).unwrap(), Seq(42));
        assert_eq!(ours.parse(&theirs.text(Seq(42))).unwrap(), Seq(0));
        for start in ["0", "7", "23-g1AAAACTeJzLYWBg_-x="] {
            assert_eq!(ours.parse(start).unwrap(), Seq(0), "{start}");
        }
    }

    #[test]
    fn junk_is_refused() {
        let sequence = Sequence::new(&[1; 16]);
        for junk in ["", "-", "x", "5-", "-5", "5 ", "5-a b", "5x", "now", "99999999999999999999999-a"] {
            assert_eq!(sequence.parse(junk).unwrap_err().kind(), ErrorKind::BadRequest, "{junk}");
        }
    }
}
