//! Facts from a certificate: the name in a client's, for the log and the list of clients; the
//! expiry of the server's own; and why one of an old version is refused.
//!
//! A client's certificate has been verified before anyone asks for its name. What is read here is
//! still someone else's text: it is cut to [`NAME_MAX`] characters, and those that are not shown are
//! replaced.

use std::error::Error;
use std::path::Path;

use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use tracing::warn;
use webpki::EndEntityCert;

use bsd::clock::{Clock, utc};
use bsd::types::shown_name;

/// Characters of a name that are kept.
const NAME_MAX: usize = 64;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
/// The strings that hold UTF-8 or ASCII.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// `commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The version of a certificate, which those of version 1 leave out.
const VERSION: u8 = 0xa0;
/// A time with two digits of the year, from 1950 to 2049, and one with four.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const DAY_SECONDS: i64 = 86_400;
/// From this many days before its end on, a warning tells of a certificate.
const WARNING_DAYS: i64 = 14;

/// When the first certificate of a chain ends, seconds since 1970; `None` if that cannot be read.
pub(crate) fn end_of(chain: &[CertificateDer<'_>]) -> Option<i64> {
    chain.iter().filter_map(|it| not_after(it)).min()
}

/// Say it if a certificate of this file ends soon, or has ended.
pub(crate) fn warn_of_end(file: &Path, end: Option<i64>) {
    let now = i64::try_from(Clock::start().now().wall_ns / 1_000_000_000).unwrap_or(i64::MAX);
    if let Some(why) = end.and_then(|end| ending(end, now)) {
        warn!("the certificate in {} {why}", file.display());
    }
}

/// Warning about a certificate that expires then; `None`: there is time.
fn ending(end: i64, now: i64) -> Option<String> {
    let days = end.saturating_sub(now).div_euclid(DAY_SECONDS);
    let at = utc(u64::try_from(end)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000));
    let day = at.split('T').next().unwrap_or_default();
    let what = match days {
        ..0 => format!("expired on {day}: clients that check it cannot connect"),
        0..WARNING_DAYS => format!("expires in {days} days, on {day}"),
        _ => return None,
    };
    Some(format!(
        "{what}; put a new one in its place, then send SIGHUP"
    ))
}

fn not_after(certificate: &[u8]) -> Option<i64> {
    let (SEQUENCE, signed, _) = element(certificate)? else {
        return None;
    };
    let (SEQUENCE, body, _) = element(signed)? else {
        return None;
    };
    let rest = match element(body)? {
        (VERSION, _, rest) => rest,
        _ => body,
    };
    // Before how long it holds stand its number, the kind of its signature, and who has issued it.
    let (_, _, rest) = element(rest)?;
    let (_, _, rest) = element(rest)?;
    let (_, _, rest) = element(rest)?;
    let (SEQUENCE, validity, _) = element(rest)? else {
        return None;
    };
    let (_, _, rest) = element(validity)?;
    let (kind, text, _) = element(rest)?;
    seconds_of(kind, std::str::from_utf8(text).ok()?)
}

/// Such a time, in seconds since 1970. It is in UTC, to the second: DER allows nothing else.
fn seconds_of(kind: u8, text: &str) -> Option<i64> {
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |digits: &str| digits.parse::<i64>().ok();
    let (year, rest) = match (kind, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2])?;
            (
                if year < 50 { 2000 + year } else { 1900 + year },
                &digits[2..],
            )
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |nth: usize| number(&rest[2 * nth..2 * nth + 2]);
    let (month, day) = (part(0)?, part(1)?);
    let second = part(2)? * 3600 + part(3)? * 60 + part(4)?;
    // As in `clock`: years begin in March, and 400 of them are an era.
    let year = year - i64::from(month <= 2);
    let month = (month + 9) % 12;
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * DAY_SECONDS + second)
}

/// Why a handshake failed, in words where the library has none.
pub fn explained(error: &(dyn Error + 'static)) -> String {
    let of_tls = error.downcast_ref::<rustls::Error>().or_else(|| {
        let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
        inner.downcast_ref()
    });
    let other = match of_tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) => &other.0,
        _ => return error.to_string(),
    };
    match other.downcast_ref() {
        Some(webpki::Error::UnsupportedCertVersion) => OLD.to_owned(),
        _ => error.to_string(),
    }
}

/// Error about a certificate that `openssl x509 -req` makes without extensions.
const OLD: &str = "the certificate is of X.509 version 1, and only version 3 is taken: sign it again \
                   with an extension, as `openssl x509 -req` does with `-extfile FILE` where FILE \
                   has the line subjectAltName=DNS:NAME, or with `-copy_extensions copy` where the \
                   request has extensions";

/// The common name of the subject; without one, the first DNS name among the alternative ones.
pub fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let common = common_name(certificate.subject());
    let name = common.or_else(|| certificate.valid_dns_names().next());
    name.map(shown).filter(|name| !name.is_empty())
}

fn shown(name: &str) -> String {
    let cut: String = name.chars().take(NAME_MAX).collect();
    shown_name(&cut)
}

/// The first common name in the content of a `Name`: a row of SETs, in each of which are SEQUENCEs
/// of an object id and a value.
fn common_name(mut subject: &[u8]) -> Option<&str> {
    while let Some((tag, mut set, rest)) = element(subject) {
        subject = rest;
        while let (SET, Some((SEQUENCE, attribute, rest))) = (tag, element(set)) {
            set = rest;
            let (kind, id, value) = element(attribute)?;
            let (text_kind, text, _) = element(value)?;
            if (kind, id) == (OBJECT_ID, COMMON_NAME) && TEXTS.contains(&text_kind) {
                return std::str::from_utf8(text).ok();
            }
        }
    }
    None
}

/// The first element of DER: its tag, its content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn g32_the_end_of_a_certificate_is_read_also_in_the_form_for_far_years() {
        // Days since 1970, as `date -d 2020-01-01 +%s` has them.
        for (year, expected) in [
            (1996, 820_454_400),
            (2020, 1_577_836_800),
            (2049, 2_493_072_000),
        ] {
            assert_eq!(end_of(&[until(year)]), Some(expected), "{year}");
        }
        assert_eq!(end_of(&[until(2050)]), Some(2_524_608_000));
        assert_eq!(end_of(&[until(4000)]), Some(64_060_588_800));
        let chain = [until(2049), until(2020), until(2050)];
        assert_eq!(
            end_of(&chain),
            Some(1_577_836_800),
            "the first one that ends"
        );
        assert_eq!(end_of(&[]), None);
        let leap = seconds_of(UTC_TIME, "240229235959Z");
        assert_eq!(leap, Some(1_709_251_199));
        for wrong in [
            "240229235959",
            "2402292359Z",
            "24022923595xZ",
            "20240229235959Z",
            "",
        ] {
            assert_eq!(seconds_of(UTC_TIME, wrong), None, "{wrong}");
        }
    }

    fn until(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(1990, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn g32_a_certificate_cut_or_changed_anywhere_is_no_panic() {
        let whole = until(2030);
        let found = end_of(std::slice::from_ref(&whole));
        for end in 0..whole.len() {
            assert!([None, found].contains(&not_after(&whole[..end])), "{end}");
            for bit in 0..8 {
                let mut forged = whole.to_vec();
                forged[end] ^= 1 << bit;
                let _ = not_after(&forged);
            }
        }
    }

    #[test]
    fn g32_a_warning_comes_below_14_days_and_says_when_it_has_ended() {
        let now = 1_577_836_800;
        let said = |seconds| ending(now + seconds, now);
        assert_eq!(said(14 * DAY_SECONDS), None);
        let soon = said(14 * DAY_SECONDS - 1).unwrap();
        assert!(
            soon.starts_with("expires in 13 days, on 2020-01-14; "),
            "{soon}"
        );
        assert!(said(0).unwrap().starts_with("expires in 0 days"));
        let late = said(-1).unwrap();
        assert!(late.starts_with("expired on 2019-12-31: "), "{late}");
    }

    fn certificate(common: Option<&str>, dns: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = dns.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "of bsd");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn the_common_name_is_the_name_or_else_the_first_dns_name() {
        let name = |common, dns: &[&str]| name_of(&certificate(common, dns));
        assert_eq!(name(Some("mailer"), &["a.example"]).unwrap(), "mailer");
        assert_eq!(
            name(None, &["a.example", "b.example"]).unwrap(),
            "a.example"
        );
        assert_eq!(name(None, &[]), None);
    }

    #[test]
    fn a_name_is_cut_and_has_no_control_characters() {
        let long = "ä".repeat(1000);
        let name = name_of(&certificate(Some(&long), &[])).unwrap();
        assert_eq!(name, "ä".repeat(NAME_MAX));
        let name = name_of(&certificate(Some("a\n\x1b[31mb"), &[])).unwrap();
        assert_eq!(name, "a\u{fffd}\u{fffd}[31mb");
    }

    #[test]
    fn g34_a_name_has_no_characters_that_turn_others_round_or_are_not_seen() {
        let name = name_of(&certificate(
            Some("a\u{202e}b\u{200b}c\u{feff}\u{2066}d\u{ad}é"),
            &[],
        ));
        assert_eq!(
            name.unwrap(),
            "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}d\u{fffd}é"
        );
    }

    #[test]
    fn a_name_cut_anywhere_is_no_name_and_no_panic() {
        let certificate = certificate(Some("mailer"), &[]);
        let parsed = EndEntityCert::try_from(&certificate).unwrap();
        let subject = parsed.subject();
        for end in 0..subject.len() {
            assert_eq!(common_name(&subject[..end]), None, "{end}");
            for byte in 0..=255 {
                let mut forged = subject.to_vec();
                forged[end] = byte;
                let _ = common_name(&forged);
            }
        }
    }
}
