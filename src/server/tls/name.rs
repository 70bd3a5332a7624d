//! The name in a client's certificate, which the log and the list of clients show.
//!
//! The certificate has been verified before anybody asks for its name. What is read here is still
//! somebody else's text: it is cut to [`NAME_MAX`] characters, and those that are not shown are
//! replaced.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

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

/// The common name of the subject; without one, the first DNS name among the alternative ones.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let common = common_name(certificate.subject());
    let name = common.or_else(|| certificate.valid_dns_names().next());
    name.map(shown).filter(|name| !name.is_empty())
}

fn shown(name: &str) -> String {
    let shown = |letter: char| match letter.is_control() {
        true => '\u{fffd}',
        false => letter,
    };
    name.chars().take(NAME_MAX).map(shown).collect()
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
