//! Decimal numbers as the protocol writes them, and as C reads them.
//!
//! Arguments are read strictly: blanks, then digits. The bound of `kick` is read loosely, because
//! beanstalkd passes it to C's `strtoul`, and clients rely on that (`kick -1`). Both ways are here,
//! so that no other module parses digits. Nothing here allocates, except [`push_u64`] in its
//! buffer.

/// The digits of each number below 100, two for each.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Any number of this many digits is below 2^64.
const SURE_DIGITS: usize = 19;

/// Takes blanks and then digits from the front of `text`. `None`: no digit comes next, or the
/// number does not fit; then it is unspecified how much was taken.
pub(super) fn take_u64(text: &mut &[u8]) -> Option<u64> {
    let mut rest = *text;
    while let [b' ', after @ ..] = rest {
        rest = after;
    }
    let (mut number, mut count) = (0_u64, 0);
    while let Some(digit) = digit_at(rest, count) {
        number = number.wrapping_mul(10).wrapping_add(digit);
        count += 1;
    }
    let (digits, after) = rest.split_at(count);
    *text = after;
    match count {
        0 => None,
        1..=SURE_DIGITS => Some(number),
        _ => many_digits(digits),
    }
}

/// The value of the digit at this place, if there is one.
#[inline(always)]
fn digit_at(text: &[u8], at: usize) -> Option<u64> {
    let value = text.get(at)?.wrapping_sub(b'0');
    (value < 10).then_some(value.into())
}

/// The number, which has more digits than [`SURE_DIGITS`]. `None`: it does not fit into 64 bits.
#[cold]
fn many_digits(digits: &[u8]) -> Option<u64> {
    let digit_of = |byte: &u8| u64::from(byte - b'0');
    let mut digits = digits.iter().map(digit_of);
    digits.try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// [`take_u64`] for numbers below 2^32.
pub(super) fn take_u32(text: &mut &[u8]) -> Option<u32> {
    u32::try_from(take_u64(text)?).ok()
}

/// The number that `text` ends with: blanks, digits, and nothing after them.
pub(super) fn last_u64(mut text: &[u8]) -> Option<u64> {
    let number = take_u64(&mut text)?;
    text.is_empty().then_some(number)
}

/// [`last_u64`] for numbers below 2^32.
pub(super) fn last_u32(text: &[u8]) -> Option<u32> {
    u32::try_from(last_u64(text)?).ok()
}

/// `strtoul(text, &end, 10)` with a 64-bit `unsigned long`: white space, a sign, digits; the rest
/// is ignored, and a minus sign negates modulo 2^64. `None`: out of range, or no digit.
pub(super) fn c_unsigned_long(mut text: &[u8]) -> Option<u64> {
    let blanks = count_while(text, is_c_space);
    let sign = text
        .get(blanks)
        .copied()
        .filter(|byte| matches!(byte, b'+' | b'-'));
    text = &text[blanks + usize::from(sign.is_some())..];
    // No blank may follow a sign.
    let is_digit = text.first().is_some_and(u8::is_ascii_digit);
    let magnitude = take_u64(&mut text).filter(|_| is_digit)?;
    Some(if sign == Some(b'-') {
        magnitude.wrapping_neg()
    } else {
        magnitude
    })
}

/// Appends `number` in decimal.
pub(super) fn push_u64(out: &mut Vec<u8>, number: u64) {
    let mut text = Backwards::new();
    text.number(number);
    out.extend_from_slice(text.bytes());
}

/// A line, or its end, written from the last byte to the first: so no number is measured before it is
/// written, and all is appended at once.
pub(super) struct Backwards {
    bytes: [u8; LINE_SIZE],
    start: usize,
}

/// Room for a word, two numbers, a blank, and the end of the line.
const LINE_SIZE: usize = 64;

impl Backwards {
    /// Nothing is written.
    #[inline(always)]
    pub(super) fn new() -> Backwards {
        Backwards {
            bytes: [0; LINE_SIZE],
            start: LINE_SIZE,
        }
    }

    /// This comes before what is written.
    #[inline(always)]
    pub(super) fn word<const SIZE: usize>(&mut self, word: &[u8; SIZE]) {
        self.start -= SIZE;
        self.bytes[self.start..self.start + SIZE].copy_from_slice(word);
    }

    /// This number, in decimal, comes before what is written.
    #[inline(always)]
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 100 {
            self.word(&PAIRS[(number % 100) as usize]);
            number /= 100;
        }
        self.word(&PAIRS[number as usize]);
        self.start += usize::from(number < 10);
    }

    /// What is written.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// `isspace` in the C locale.
fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn count_while(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> usize {
    bytes
        .iter()
        .position(|byte| !wanted(*byte))
        .unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_blanks_and_then_digits_taken_greedily() {
        for (text, number, rest) in [
            ("1", Some(1), ""),
            ("  12 3", Some(12), " 3"),
            ("7x", Some(7), "x"),
            ("00000000000000000000000000000000000042", Some(42), ""),
            ("18446744073709551615", Some(u64::MAX), ""),
        ] {
            let mut left = text.as_bytes();
            assert_eq!(take_u64(&mut left), number, "{text:?}");
            assert_eq!(left, rest.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            " ",
            "x",
            "\t1",
            "+1",
            "-1",
            "18446744073709551616",
            "99999999999999999999",
        ] {
            assert_eq!(take_u64(&mut text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(take_u32(&mut &b"4294967295"[..]), Some(u32::MAX));
        assert_eq!(take_u32(&mut &b"4294967296"[..]), None);
    }

    #[test]
    fn a_last_number_has_nothing_after_it() {
        assert_eq!(last_u64(b" 1"), Some(1));
        assert_eq!(last_u64(b"1 "), None);
        assert_eq!(last_u64(b"1x"), None);
        assert_eq!(last_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(last_u32(b"4294967296"), None);
    }

    #[test]
    fn c_unsigned_long_reads_what_strtoul_reads() {
        for (text, number) in [
            ("", None),
            ("x", None),
            ("- 1", None),
            ("+", None),
            ("--5", None),
            ("0x10", Some(0)),
            (" \t+3 4", Some(3)),
            (" \t\n\x0b\x0c\r5x", Some(5)),
            ("-1", Some(u64::MAX)),
            ("-18446744073709551615", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-18446744073709551616", None),
        ] {
            assert_eq!(c_unsigned_long(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        let powers = (0..20).map(|exponent| 10_u64.pow(exponent));
        for number in powers
            .flat_map(|power| [power - 1, power, power + 1])
            .chain([u64::MAX])
        {
            let mut out = b"> ".to_vec();
            push_u64(&mut out, number);
            assert_eq!(out, format!("> {number}").into_bytes());
        }
    }
}
