//! TLS and tokens.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bsd_client::{AsyncClient, AsyncPool, Client, Config, ErrorKind, Pool, Put, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::harness::{Server, bsd};

/// An authority, and files of a certificate for `localhost` that it has signed.
pub(crate) struct Authority {
    pub(crate) pem: String,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

pub(crate) fn authority(dir: &Path) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    let found = Authority {
        pem: issuer.as_ref().pem(),
        certificate: dir.join("cert.pem"),
        key: dir.join("key.pem"),
    };
    std::fs::write(&found.certificate, signed.pem()).unwrap();
    std::fs::write(&found.key, key.serialize_pem()).unwrap();
    found
}

/// A server that speaks TLS, and what a client needs.
pub(crate) fn tls_server(dir: &Path, more: &[&str]) -> Option<(Server, Config)> {
    let of = authority(dir);
    let [certificate, key] = [&of.certificate, &of.key].map(|it| it.to_str().unwrap());
    let tls = [
        "-l",
        "tls:127.0.0.1",
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
    ];
    let server = Server::bsd(&[&tls, more].concat())?;
    let port = server.address().rsplit(':').next().unwrap();
    let config: Config = format!("tls:localhost:{port}").parse().unwrap();
    let tls = Tls::with_authorities(of.pem.as_bytes()).unwrap();
    Some((server, config.tls(tls)))
}

/// A token of this role, and a file that lets it in.
pub(crate) fn token(dir: &Path, role: &str) -> Option<(String, String)> {
    let output = Command::new(bsd()?)
        .args(["--new-token", role])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let of = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    let file = dir.join(format!("tokens-{}", role.replace([':', '*'], "-")));
    std::fs::write(&file, of("line:") + "\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    Some((of("token:"), file.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn both_clients_speak_tls_and_believe_only_their_authority() {
    let dir = tempfile::tempdir().unwrap();
    let Some((server, config)) = tls_server(dir.path(), &[]) else {
        return;
    };
    let mut client = Client::connect(config.clone()).unwrap();
    for number in 0..5 {
        client.put(Put::new(number.to_string())).unwrap();
    }
    let large = vec![Put::new(vec![b'x'; 60_000]); 50];
    assert!(client.put_many(&large).unwrap().iter().all(Result::is_ok));
    // One connection for all of it, although session tickets come unasked.
    assert_eq!(client.stats().unwrap().get("total-connections"), Some("1"));
    let mut other = AsyncClient::connect(config.clone()).await.unwrap();
    assert_eq!(other.stats().await.unwrap().ready, 55);
    let jobs = other
        .reserve_batch(10, std::time::Duration::ZERO)
        .await
        .unwrap();
    assert!(jobs.len() >= 5);
    assert_eq!(client.stats().unwrap().get("total-connections"), Some("2"));

    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = authority(elsewhere.path());
    let stranger = Tls::with_authorities(stranger.pem.as_bytes()).unwrap();
    let refused = Client::connect(config.clone().tls(stranger)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Connect, "{refused}");
    let plain: Config = server.address().trim_start_matches("tls:").parse().unwrap();
    assert!(Client::connect(plain).is_err());
    assert!(Tls::with_authorities(b"nothing").is_err());
}

#[test]
fn a_token_is_sent_first_and_says_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let Some((token, file)) = token(dir.path(), "put:mail-*") else {
        return;
    };
    let server = Server::bsd(&["--auth-file", &file]).unwrap();
    let none = Client::connect(server.config()).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotAuthorized);
    let wrong = Client::connect(server.config().token("wrong")).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::NotAuthorized);
    let mut client = Client::connect(server.config().token(token.clone())).unwrap();
    client.put(Put::new("x").tube("mail-a")).unwrap();
    let other = client.put(Put::new("x").tube("other")).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NotAuthorized);
    // The role has no `fail`, so the server does not list it, and it is not sent.
    assert!(client.supports("put-with").unwrap());
    assert_eq!(
        client.fail(1, "x").unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        client.auth("wrong").unwrap_err().kind(),
        ErrorKind::NotAuthorized
    );
    // The configured token is still the one of later connections.
    client.put(Put::new("x").tube("mail-a")).unwrap();
    client.auth(&token).unwrap();
    // Where no token is asked for, one does no harm.
    let open = Server::bsd(&[]).unwrap();
    Client::connect(open.config().token("any"))
        .unwrap()
        .auth("other")
        .unwrap();
}

#[tokio::test]
async fn a_client_of_a_pool_has_the_role_of_its_pool_whatever_the_last_user_was() {
    let dir = tempfile::tempdir().unwrap();
    let Some((own, file)) = token(dir.path(), "put:mail-*") else {
        return;
    };
    let (other, more) = token(dir.path(), "all").unwrap();
    let lines = [&file, &more].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&file, lines.concat()).unwrap();
    let server = Server::bsd(&["--auth-file", &file]).unwrap();
    let (allowed, refused) = (Put::new("x").tube("mail-a"), Put::new("x").tube("other"));

    let pool = Pool::new(server.config().token(own.clone()), 1);
    let mut client = pool.get().unwrap();
    client.auth(&other).unwrap();
    client.put(refused.clone()).unwrap();
    drop(client);
    let mut client = pool.get().unwrap();
    let error = client.put(refused.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized);
    client.put(allowed.clone()).unwrap();

    let pool = AsyncPool::new(server.config().token(own), 1);
    let mut client = pool.get().await.unwrap();
    client.auth(&other).await.unwrap();
    client.put(refused.clone()).await.unwrap();
    drop(client);
    let mut client = pool.get().await.unwrap();
    let error = client.put(refused).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized);
    client.put(allowed).await.unwrap();
}
