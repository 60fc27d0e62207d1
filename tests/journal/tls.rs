//! A database over TLS: `sslmode=require` means that the certificate is checked, root and name.

use super::server::Server;
use awaken_operator::{
    journal::postgres::{Database, OpenError, Postgres, Url},
    process::metrics::Metrics,
};
use rstest::rstest;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use std::{path::Path, process::Command, sync::Arc};

fn openssl(dir: &Path, arguments: &[&str]) {
    let out = Command::new("openssl").current_dir(dir).args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A root of its own, at NAME.crt and NAME.key.
fn root(dir: &Path, name: &str) {
    let (key, crt, subject) = (format!("{name}.key"), format!("{name}.crt"), format!("/CN={name}"));
    openssl(dir, &["ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", &key]);
    openssl(dir, &["req", "-x509", "-key", &key, "-subj", &subject, "-days", "2", "-out", &crt]);
}

/// A certificate of that root for `localhost`.
fn certify(dir: &Path) {
    root(dir, "root");
    root(dir, "other");
    std::fs::write(dir.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let key = ["ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "server.key"];
    openssl(dir, &key);
    let request = ["req", "-new", "-key", "server.key", "-subj", "/CN=db", "-out", "server.csr"];
    openssl(dir, &request);
    let sign = [
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "root.crt",
        "-CAkey",
        "root.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "names",
        "-out",
        "server.crt",
    ];
    openssl(dir, &sign);
}

fn trusting(root: &[u8]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[rstest]
#[case::its_root_and_name("root.crt", "localhost", None)]
#[case::another_root("other.crt", "localhost", Some("UnknownIssuer"))]
#[case::another_name("root.crt", "127.0.0.1", Some("not valid for name"))]
#[tokio::test]
async fn a_server_is_believed_by_its_certificate(
    #[case] trusted: &str,
    #[case] host: &str,
    #[case] refused: Option<&str>,
) {
    let mut roots = vec![];
    let server = Server::start_with_tls(|dir| {
        certify(dir);
        roots = std::fs::read(dir.join(trusted)).unwrap();
    });
    let url = server.database_at(host);
    let database = Database::new(Url::Text(url.as_str().into()), trusting(&roots), false);
    let opened = Postgres::open(database.unwrap(), &Metrics::new()).await;
    match (opened, refused) {
        (Ok(journal), None) => {
            let name = url.split(' ').find_map(|part| part.strip_prefix("dbname=")).unwrap();
            let over_tls = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                            WHERE application_name = 'awaken-gateway'";
            assert_eq!(server.sql(name, over_tls), "t");
            journal.close().await;
        }
        (Err(OpenError::Connect(why)), Some(part)) => assert!(why.contains(part), "{why}"),
        (other, _) => panic!("{:?}", other.err()),
    }
}
