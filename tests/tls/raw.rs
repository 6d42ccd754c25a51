//! A connection to the listener for nodes with any certificate, or with none.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    harness::{DEADLINE, tls::Authority},
    hostile::raw::connect_narrow,
};

/// A certificate with its key.
pub(super) type Own = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// Trusts whatever the other end shows: the tests here are about what that end accepts.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Reads a certificate and its key.
pub(super) fn read((certificate, key): &(impl AsRef<Path>, impl AsRef<Path>)) -> Own {
    (CertificateDer::from_pem_file(certificate).unwrap(), PrivateKeyDer::from_pem_file(key).unwrap())
}

/// A certificate that the authority signs, for these names, which ended in the past unless `is_good`.
pub(super) fn signed(authority: &Authority, names: &[&str], is_good: bool) -> Own {
    let key_pem = std::fs::read_to_string(authority.directory.join("ca.key")).unwrap();
    let ca = CertificateDer::from_pem_file(authority.certificate()).unwrap();
    let issuer = Issuer::from_ca_cert_der(&ca, KeyPair::from_pem(&key_pem).unwrap()).unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "made by a test");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    if !is_good {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

/// A client that shows this certificate, or none, and trusts everybody.
fn connector(own: Option<&Own>) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    TlsConnector::from(Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            builder.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).unwrap()
        }
    }))
}

/// A handshake that trusts whatever the other end shows.
pub(crate) async fn trusting(stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
    // Made once: it reads the system's random numbers, and an attacker makes thousands of handshakes.
    static CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| connector(None));
    CONNECTOR.connect(ServerName::try_from("anything.test").expect("a name"), stream).await
}

/// Sends a request over a narrow connection, and reads nothing of its answer.
pub(super) async fn ask_only(to: SocketAddr, request: &str) -> TlsStream<TcpStream> {
    let stream = connect_narrow(to).await;
    let name = ServerName::try_from("anything.test").unwrap();
    let mut stream = connector(None).connect(name, stream).await.expect("a handshake");
    stream.write_all(request.as_bytes()).await.expect("it is open");
    stream
}

/// How many bytes come until the connection ends, in order or not.
pub(super) async fn rest(mut stream: TlsStream<TcpStream>) -> usize {
    let (mut count, mut chunk) = (0, vec![0; 64 << 10]);
    let read = async {
        while let Ok(more @ 1..) = stream.read(&mut chunk).await {
            count += more;
        }
    };
    timeout(DEADLINE, read).await.expect("it ends");
    count
}

/// The first line of the answer to a request over TLS; the error is that of the handshake or of the connection.
pub(super) async fn ask(to: SocketAddr, own: Option<&Own>, request: &str) -> Result<String, String> {
    let asked = async {
        let stream = TcpStream::connect(to).await?;
        let name = ServerName::try_from("anything.test").unwrap();
        let mut stream = connector(own).connect(name, stream).await?;
        stream.write_all(request.as_bytes()).await?;
        first_line(&mut stream).await
    };
    timeout(DEADLINE, asked).await.expect("it is answered or closed").map_err(|error| error.to_string())
}

/// The first line of the answer to a plain request; empty when the connection is closed without one.
pub(super) async fn ask_plainly(to: SocketAddr, request: &str) -> Result<String, String> {
    let asked = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(request.as_bytes()).await?;
        first_line(&mut stream).await
    };
    timeout(DEADLINE, asked).await.expect("it is answered or closed").map_err(|error| error.to_string())
}

async fn first_line(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while !bytes.contains(&b'\n') {
        match stream.read(&mut chunk).await? {
            0 => break,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A connection that says nothing, or the beginning of a handshake.
pub(super) async fn silent(to: SocketAddr, beginning: &[u8]) -> TcpStream {
    let mut stream =
        timeout(DEADLINE, TcpStream::connect(to)).await.expect("in time").expect("it is accepted");
    stream.write_all(beginning).await.expect("it is open");
    stream
}

/// Whether the other end closes a connection within the deadline of all tests.
pub(super) async fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(DEADLINE.max(Duration::from_secs(60)), stream.read_to_end(&mut rest)).await.is_ok()
}
