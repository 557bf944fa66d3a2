//! API tokens: shown once, stored as SHA-256, compared in constant time. Tokens are 256 random bits, so a slow hash
//! would add nothing.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{files, sprites};

/// The org of tokens that name none.
pub const DEFAULT_ORG: &str = "default";

/// A stored token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Token {
    /// By which it is listed and revoked.
    pub id: String,
    /// Whose sprites it sees.
    pub org: String,
    /// What its maker wrote.
    pub description: String,
    /// RFC 3339.
    pub created_at: String,
    /// Hex.
    sha256: String,
}

/// All tokens: `<state>/tokens.json`, and a fixed one from the environment.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    fixed: Option<String>,
    tokens: Mutex<Vec<Token>>,
}

impl Tokens {
    /// Reads the file. `fixed` is a token for automation that is never stored.
    pub fn open(path: PathBuf, fixed: Option<String>) -> io::Result<Self> {
        let tokens = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, fixed: fixed.map(|token| hash(&token)), tokens: Mutex::new(tokens) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Token>> {
        self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The org that a token speaks for. Every stored hash is compared, so the time tells nothing.
    pub fn org_of(&self, token: &str) -> Option<String> {
        let shown = hash(token);
        let same = |stored: &str| bool::from(stored.as_bytes().ct_eq(shown.as_bytes()));
        let mut org = None;
        for token in self.lock().iter() {
            if same(&token.sha256) {
                org = Some(token.org.clone());
            }
        }
        if self.fixed.as_deref().is_some_and(same) {
            org = Some(DEFAULT_ORG.to_owned());
        }
        org
    }

    /// Whether anyone can get in at all.
    pub fn is_empty(&self) -> bool {
        self.fixed.is_none() && self.lock().is_empty()
    }

    /// All stored tokens.
    pub fn list(&self) -> Vec<Token> {
        self.lock().clone()
    }

    /// Makes a token; its text is returned once and never again.
    pub fn create(&self, org: &str, description: &str) -> io::Result<(String, Token)> {
        let (id, secret) = (random_hex(4)?, random_hex(32)?);
        // The parts that the hosted service's tokens have; clients treat it as opaque.
        let text = format!("{org}/fountain/{id}/{secret}");
        let token = Token {
            id,
            org: org.to_owned(),
            description: description.to_owned(),
            created_at: sprites::now(),
            sha256: hash(&text),
        };
        self.change(|tokens| tokens.push(token.clone()))?;
        Ok((text, token))
    }

    /// Revokes a token: no request can use it once this returns. False when there is none.
    pub fn revoke(&self, id: &str) -> io::Result<bool> {
        let mut found = false;
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.id != id);
            found = tokens.len() < before;
        })?;
        Ok(found)
    }

    /// Stored first, then in force. Changes come one at a time, from the admin socket.
    fn change(&self, edit: impl FnOnce(&mut Vec<Token>)) -> io::Result<()> {
        let mut tokens = self.list();
        edit(&mut tokens);
        files::write_atomic(&self.path, &serde_json::to_vec_pretty(&tokens)?)?;
        *self.lock() = tokens;
        Ok(())
    }
}

/// `count` random bytes in hex.
pub fn random_hex(count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn hash(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_works_until_it_is_revoked_and_is_never_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let tokens = Tokens::open(path.clone(), Some("fixed".into())).unwrap();
        let (text, token) = tokens.create("acme", "laptop").unwrap();
        assert_eq!(tokens.org_of(&text).as_deref(), Some("acme"));
        assert_eq!(tokens.org_of("fixed").as_deref(), Some("default"));
        assert_eq!(tokens.org_of("acme/fountain"), None);
        assert!(!std::fs::read_to_string(&path).unwrap().contains(&text));
        let again = Tokens::open(path, None).unwrap();
        assert_eq!(again.org_of(&text).as_deref(), Some("acme"));
        assert!(again.revoke(&token.id).unwrap());
        assert!(!again.revoke(&token.id).unwrap());
        assert_eq!(again.org_of(&text), None);
    }
}
