//! Connections that end with their server. Those of a plain one would live on in tasks of their own,
//! and a client would go on talking to a server that a test has ended.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Takes connections in.
pub(super) struct Door {
    listener: TcpListener,
    gone: watch::Receiver<bool>,
}

impl Door {
    pub(super) fn new(listener: TcpListener, gone: watch::Receiver<bool>) -> Self {
        Self { listener, gone }
    }
}

impl Listener for Door {
    type Io = Line;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Line, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let mut gone = self.gone.clone();
        let gone = Box::pin(async move {
            // An error means that the server was dropped before it could say so.
            let _ = gone.wait_for(|gone| *gone).await;
        });
        (Line { stream, gone, cut: false }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection.
pub(super) struct Line {
    stream: TcpStream,
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
    cut: bool,
}

impl Line {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.cut = self.cut || self.gone.as_mut().poll(cx).is_ready();
        if self.cut { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
