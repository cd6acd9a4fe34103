//! Connections.

use std::cell::RefCell;
use std::io::Result;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::book::Book;
use crate::latency::Latency;
use crate::replies::Replies;
use crate::request::{Asked, extent};
use crate::settings::Settings;

/// What all connections share.
pub struct Stub {
    /// What is counted.
    pub book: RefCell<Book>,
    replies: Replies,
    latency: RefCell<Latency>,
}

impl Stub {
    /// A stub that has heard nothing yet.
    pub fn new(settings: &Settings) -> Self {
        Self {
            book: RefCell::default(),
            replies: Replies::new(settings),
            latency: RefCell::new(Latency::new(settings)),
        }
    }

    /// Serve whoever connects. A connection that cannot be accepted is left to the client to try again.
    pub async fn accept(self: Rc<Self>, listener: TcpListener, tls: Option<TlsAcceptor>) {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::task::spawn_local(Rc::clone(&self).open(stream, tls.clone()));
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Serve a connection, after its handshake where it speaks TLS.
    async fn open(self: Rc<Self>, stream: TcpStream, tls: Option<TlsAcceptor>) {
        match tls {
            None => self.serve(stream).await,
            Some(tls) => {
                if let Ok(stream) = tls.accept(stream).await {
                    self.serve(stream).await;
                }
            }
        }
    }

    /// Answer the requests of one connection until it ends; a broken one ends too.
    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        self.book.borrow_mut().opened();
        let mut buffer = Vec::new();
        while let Ok(true) = self.answer(&mut stream, &mut buffer).await {}
        self.book.borrow_mut().closed();
    }

    /// Answer one request; false where none came any more.
    async fn answer(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin), buffer: &mut Vec<u8>) -> Result<bool> {
        let Some((head, body)) = receive(stream, buffer).await? else {
            return Ok(false);
        };
        let asked = Asked::read(&buffer[head..head + body]);
        buffer.drain(..head + body);
        self.book.borrow_mut().came(asked.conversation);
        let held_back = self.latency.borrow_mut().next();
        if let Some(time) = held_back {
            tokio::time::sleep(time).await;
        }
        stream.write_all(&self.replies.of(&asked)).await?;
        stream.flush().await?;
        if !asked.last {
            self.book.borrow_mut().handed(asked.conversation);
        }
        Ok(true)
    }
}

/// Read until the buffer begins with a whole request: the bytes of its head and of its body.
async fn receive(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
    let mut request = None;
    loop {
        if request.is_none() && !buffer.is_empty() {
            request = extent(buffer)?;
        }
        if let Some((head, body)) = request {
            if buffer.len() >= head + body {
                return Ok(request);
            }
            buffer.reserve(head + body - buffer.len());
        } else {
            buffer.reserve(2048);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}
