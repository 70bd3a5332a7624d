//! When the certificates end that this server shows: other threads see it at any time, and a warning
//! comes once a day when it is near. The first one comes when a file is read.

use std::path::Path;

use super::Server;
use super::pulse::CertificateOf;
use super::tls::warn_of_end;
use bsd::types::{SECOND_NS, Time};

/// How often a warning comes.
pub(super) const REMINDER_NS: i64 = 86_400 * SECOND_NS;

impl Server {
    /// The files are as they were read last.
    pub(super) fn show_certificates(&self) {
        for (of, _, end) in self.certificates() {
            self.pulse.set_certificate_end(of, end);
        }
    }

    /// Say once a day what ends soon.
    pub(super) fn remind_of_certificates(&mut self) {
        let now = self.core.now.mono;
        if now < self.reminds_at {
            return;
        }
        self.reminds_at = Time(now.0.saturating_add(REMINDER_NS));
        self.certificates()
            .for_each(|(_, file, end)| warn_of_end(file, end));
    }

    /// When that is next, if there are certificates.
    pub(super) fn next_reminder(&self) -> Option<Time> {
        let of_members = self.member.as_ref().is_some_and(|it| it.tls().is_some());
        (of_members || self.gate.tls().is_some()).then_some(self.reminds_at)
    }

    /// Who is shown one, the file that it is in, and when it ends.
    fn certificates(&self) -> impl Iterator<Item = (CertificateOf, &Path, Option<i64>)> {
        let of_clients = self.gate.tls();
        let of_clients = of_clients.map(|tls| (CertificateOf::Clients, tls.cert(), tls.end()));
        let of_members = self.member.as_ref().and_then(|it| it.certificate());
        let of_members = of_members.map(|(file, end)| (CertificateOf::Members, file, end));
        of_clients.into_iter().chain(of_members)
    }
}
