//! The token with which a person may ask things of a study.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rand::TryRng;
use rand::rngs::SysRng;

use super::DashboardError;

/// A secret of this run of the dashboard: 144 random bits.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// A new token from the system's random numbers.
    pub(super) fn new() -> Result<Self, DashboardError> {
        let mut bytes = [0u8; 18];
        SysRng
            .try_fill_bytes(&mut bytes)
            .map_err(|error| DashboardError::Random(error.to_string()))?;
        Ok(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// The token as an address has it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an `Authorization` header carries the token. Takes the same time wherever the two differ.
    pub(super) fn is_in(&self, header: &str) -> bool {
        let given = header.strip_prefix("Bearer ").unwrap_or_default().as_bytes();
        let own = self.0.as_bytes();
        let differs = own.iter().zip(given).fold(0, |differs, (a, b)| differs | (a ^ b));
        given.len() == own.len() && differs == 0
    }
}

/// Shows that there is one, never what it is.
impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let token = Token::new().unwrap();
        assert!(token.is_in(&format!("Bearer {}", token.as_str())));
        for wrong in [
            "",
            "Bearer ",
            token.as_str(),
            &format!("Bearer {}x", token.as_str()),
            &format!("Bearer {}", &token.as_str()[1..]),
        ] {
            assert!(!token.is_in(wrong), "{wrong}");
        }
        assert_ne!(token.as_str(), Token::new().unwrap().as_str());
    }
}
