//! What keeps other pages in the same browser out.
//!
//! The dashboard listens on loopback only, but any page that the browser shows may send requests there. So a request must
//! name this machine as its host (a foreign name that was made to point here, "DNS rebinding", does not), no other
//! page may ask for anything but to be left for ours, and no page of ours may be framed or run a foreign script.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Only our own scripts and style, from files and never inline; nothing else is loaded, framed or sent.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Header in which browsers say where a request comes from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The names under which the dashboard may be addressed.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Arc<[String]>);

impl Hosts {
    /// Names that this machine has for itself, with the port.
    pub(super) fn of(port: u16) -> Self {
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}"));
        Self(hosts.into())
    }

    fn has(&self, host: &str) -> bool {
        self.0.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    /// Why a request is turned away.
    fn refusal(&self, method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if !text(HOST).is_some_and(|host| self.has(host)) {
            return Some((
                StatusCode::MISDIRECTED_REQUEST,
                "this dashboard answers only to 127.0.0.1 and localhost\n",
            ));
        }
        // Programs outside a browser send neither; the token is asked of them all the same. A page that is left by a link may name
        // the site that it was on (Fetch Metadata, section 2).
        let own = |origin: &str| origin.strip_prefix("http://").is_some_and(|host| self.has(host));
        let from_page = text(ORIGIN).is_some_and(|origin| !own(origin));
        let from_site = text(FETCH_SITE).is_some_and(|site| !["same-origin", "none"].contains(&site));
        let follows_link = method == Method::GET && text(FETCH_MODE) == Some("navigate");
        if from_page || (from_site && !follows_link) {
            return Some((StatusCode::FORBIDDEN, "requests from other pages are refused\n"));
        }
        None
    }
}

/// Turns foreign requests away, and puts the headers on every answer.
pub(super) async fn guard(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let mut response = match hosts.refusal(request.method(), request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: Method, headers: &[(HeaderName, &'static str)]) -> Option<u16> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect();
        Hosts::of(8080)
            .refusal(&method, &headers)
            .map(|(status, _)| status.as_u16())
    }

    #[test]
    fn foreign_hosts_and_origins_are_turned_away() {
        let local = (HOST, "localhost:8080");
        assert_eq!(status(Method::GET, std::slice::from_ref(&local)), None);
        assert_eq!(status(Method::GET, &[(HOST, "evil.example:8080")]), Some(421));
        assert_eq!(status(Method::GET, &[(HOST, "127.0.0.1:9")]), Some(421));
        assert_eq!(status(Method::GET, &[]), Some(421));
        assert_eq!(status(Method::POST, std::slice::from_ref(&local)), None);
        assert_eq!(
            status(Method::POST, &[local.clone(), (ORIGIN, "http://localhost:8080")]),
            None
        );
        for origin in [
            "http://evil.example",
            "null",
            "https://localhost:8080",
            "http://localhost:8081",
        ] {
            assert_eq!(
                status(Method::POST, &[local.clone(), (ORIGIN, origin)]),
                Some(403),
                "{origin}"
            );
            // Reading is work, too: a page that listens thirty times would keep ours out.
            assert_eq!(
                status(Method::GET, &[local.clone(), (ORIGIN, origin)]),
                Some(403),
                "{origin}"
            );
        }
        for (site, mode, expected) in [
            ("same-origin", "cors", None),
            ("none", "navigate", None),
            ("cross-site", "navigate", None),
            ("cross-site", "no-cors", Some(403)),
            ("same-site", "cors", Some(403)),
        ] {
            let headers = [local.clone(), (FETCH_SITE, site), (FETCH_MODE, mode)];
            assert_eq!(status(Method::GET, &headers), expected, "{site}, {mode}");
        }
    }
}
