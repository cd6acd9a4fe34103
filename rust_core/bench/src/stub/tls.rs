//! TLS with a certificate that the benchmark made.

use std::io::{Error, Result};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What performs handshakes, of a file with the certificate and one with its key.
pub fn acceptor(chain: &str, key: &str) -> Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_file(chain).map_err(Error::other)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(Error::other)?;
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).map_err(Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
