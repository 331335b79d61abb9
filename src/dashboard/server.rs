//! The server: one listener on loopback, and what it serves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;

use super::DashboardError;
use super::connection::{ConnectionLimits, Connections};
use super::guard::Hosts;
use super::route::router;
use super::shared::Shared;
use super::token::Token;
use crate::store::Store;

/// Pages that may listen for news at once.
const MOST_LISTENERS: usize = 32;

/// What a dashboard serves.
#[derive(Debug)]
pub struct DashboardSettings {
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// Study to show; the latest one where absent.
    pub study: Option<String>,
    /// Whether people with the token may ask things of the study.
    pub control: bool,
    pub limits: ConnectionLimits,
}

/// A dashboard that listens, and answers once it is served.
pub struct Dashboard {
    connections: Connections,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Dashboard {
    /// Begins to listen on 127.0.0.1.
    ///
    /// # Errors
    /// Where the port is taken, or the system gives no random numbers for the token.
    pub async fn bind(store: Store, settings: DashboardSettings) -> Result<Self, DashboardError> {
        let port = settings.port;
        let cannot = |source| DashboardError::Port { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let token = if settings.control { Some(Token::new()?) } else { None };
        let shared = Arc::new(Shared::new(store, token, settings.study));
        let limits = settings.limits;
        Ok(Self {
            connections: Connections { listener, limits },
            address,
            shared,
        })
    }

    /// Address of the page, for looking only.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Address of the page, with the token that lets its reader ask things of the study. The token stands behind a `#`,
    /// which a browser keeps to itself.
    pub fn control_url(&self) -> Option<String> {
        let token = self.shared.token.as_ref()?;
        Some(format!("{}#token={}", self.url(), token.as_str()))
    }

    /// Answers until `end` is ready. Pages that listen are let go.
    pub async fn serve(self, end: impl Future<Output = ()>) -> Result<(), DashboardError> {
        let hosts = Hosts::of(self.address.port());
        let router = router(self.shared, hosts, MOST_LISTENERS);
        tokio::select! {
            served = axum::serve(self.connections, router).into_future() => served.map_err(DashboardError::Serve),
            () = end => Ok(()),
        }
    }
}
