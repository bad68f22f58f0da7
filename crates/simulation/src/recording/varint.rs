//! Numbers of variable length: seven bits a byte, the lowest first; the highest bit of a byte says
//! that another one follows.
//!
//! **Source:** protobuf, "Base 128 Varints" and "Signed Integers" (zigzag).

/// Longest number in bytes.
const MAX_LEN: usize = 10;

/// Appends a number.
#[inline]
pub(super) fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Appends a signed number: small ones are short, whatever their sign.
#[inline]
pub(super) fn push_signed(out: &mut Vec<u8>, number: i64) {
    push(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Reads numbers and texts one after the other. Every method returns `None` at the end, or if the
/// bytes are not what is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    /// Starts to read at a position.
    #[inline]
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Returns the position of the next byte.
    #[inline]
    pub(super) fn position(self) -> usize {
        self.at
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 { Some(first.into()) } else { self.long_number(first) }
    }

    #[inline]
    fn long_number(&mut self, first: u8) -> Option<u64> {
        let mut number = u64::from(first & 0x7f);
        for position in 1..MAX_LEN {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit.
            if position == MAX_LEN - 1 && bits > 1 {
                return None;
            }
            number |= bits << (7 * position);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    #[inline]
    pub(super) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads a text: its length in bytes, and UTF-8.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.number()?).ok()?;
        let end = self.at.checked_add(len)?;
        let text = str::from_utf8(self.bytes.get(self.at..end)?).ok()?;
        self.at = end;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            push(&mut bytes, number);
            push_signed(&mut bytes, number.cast_signed());
            push_signed(&mut bytes, number.cast_signed().wrapping_neg());
            let mut reader = ByteReader::new(&bytes, 0);
            assert_eq!(reader.number(), Some(number));
            assert_eq!(reader.signed(), Some(number.cast_signed()));
            assert_eq!(reader.signed(), Some(number.cast_signed().wrapping_neg()));
            assert_eq!((reader.position(), reader.number()), (bytes.len(), None));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_none() {
        for bytes in [&[0xff; 10][..], &[0x80; 9], &[0x80]] {
            assert_eq!(ByteReader::new(bytes, 0).number(), None, "{bytes:?}");
        }
        assert_eq!(ByteReader::new(&[2, b'a'], 0).text(), None);
        assert_eq!(ByteReader::new(&[1, 0xff], 0).text(), None);
    }
}
