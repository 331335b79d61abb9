//! Values inside a page: JSON that cannot end its script element, and the hash by which a browser knows our scripts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::assets::Asset;

/// A value as JSON for the inside of a `<script type="application/json">` element.
///
/// A browser ends the element at `</script` and changes how it reads on at `<!--`, whatever the JSON means by it; so every
/// `<`, `>` and `&` is written as an escape, and U+2028 and U+2029, which end lines in scripts, too. JSON reads them back
/// as they were.
///
/// # Errors
/// Never in practice: every view has a JSON form.
pub(super) fn json_for_script<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string(value)?;
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            '\u{2028}' => safe.push_str("\\u2028"),
            '\u{2029}' => safe.push_str("\\u2029"),
            other => safe.push(other),
        }
    }
    Ok(safe)
}

/// The source expression that allows exactly this inline script or style: `'sha256-...'`
/// (Content Security Policy Level 3, section 2.3.1).
pub(super) fn csp_hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// A file as an address that holds it whole (RFC 2397).
pub(super) fn data_address(asset: &Asset) -> String {
    format!(
        "data:{};base64,{}",
        asset.content_type,
        BASE64_STANDARD.encode(asset.text)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_cannot_end_its_script() {
        let hostile = "</script><script>alert(1)</script><!-- \" ' \\ \u{2028} é 漢 \u{1f600}";
        let json = json_for_script(&hostile).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }

    proptest! {
        #[test]
        fn what_is_embedded_reads_back(text in ".*") {
            let json = json_for_script(&text).unwrap();
            prop_assert!(!json.contains('<'));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }

    #[test]
    fn the_hash_is_the_one_of_the_standard() {
        // The example of the standard: the script `alert('Hello, world.');`.
        assert_eq!(
            csp_hash("alert('Hello, world.');"),
            "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"
        );
    }
}
