//! Connections that do not wait for ever for the other end.
//!
//! A client that sends its request a byte at a time, or does not read its answer, would keep a connection and what it listens with, of
//! which there are few. A browser is nowhere near these limits: it is on this machine.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};

/// How long a connection may take.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Time from the first byte of a request to that of its answer. A large study on a busy machine takes seconds.
    pub answered_within: Duration,
    /// Time without a byte in either direction. A page that listens is told the moment each second.
    pub idle: Duration,
    /// Time with bytes to send and none taken.
    pub taken_within: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            answered_within: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            taken_within: Duration::from_secs(20),
        }
    }
}

/// Accepts connections and gives them limits.
pub(super) struct Connections {
    pub(super) listener: TcpListener,
    pub(super) limits: ConnectionLimits,
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (Connection::new(stream, self.limits), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A stream that fails once a limit is over, which closes it.
pub(super) struct Connection {
    stream: TcpStream,
    limits: ConnectionLimits,
    /// Whether a request has begun that has no answer yet.
    is_asked: bool,
    /// Until when something must have happened.
    quiet_until: Pin<Box<Sleep>>,
    /// Until when the other end must take what is being sent.
    taken_until: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    fn new(stream: TcpStream, limits: ConnectionLimits) -> Self {
        Self {
            stream,
            limits,
            is_asked: false,
            quiet_until: Box::pin(sleep(limits.idle)),
            taken_until: None,
        }
    }

    /// Takes what writing gave: the limit runs while nothing is taken.
    fn written<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.taken_until = None;
            self.is_asked = false;
            self.quiet_until.as_mut().reset(Instant::now() + self.limits.idle);
            return written;
        }
        let limit = self.limits.taken_within;
        let until = self.taken_until.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && !self.is_asked {
            self.is_asked = true;
            let until = Instant::now() + self.limits.answered_within;
            self.quiet_until.as_mut().reset(until);
        }
        if read.is_pending() {
            ready!(self.quiet_until.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
