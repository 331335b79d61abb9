//! A look at a safetensors header before the `safetensors` crate reads it.
//!
//! The crate adds the end of the last tensor to the header's length without a check: tensors that follow each other up to
//! the end of the address space make that sum overflow, which panics in debug builds and passes for a whole file in
//! release builds. Each tensor must therefore lie within the file; the crate checks all else.

use std::fmt;

use safetensors::SafeTensorError;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::Value;

/// Bytes of the header's length, in front of it.
const PREFIX: usize = size_of::<u64>();

/// Fails where a tensor ends behind the end of `file`. What is not a header at all is left to the crate's own message.
pub(crate) fn check(file: &[u8]) -> Result<(), SafeTensorError> {
    let Some((length, rest)) = file.split_first_chunk::<PREFIX>() else {
        return Ok(());
    };
    let header = usize::try_from(u64::from_le_bytes(*length))
        .ok()
        .and_then(|length| rest.get(..length));
    let Some(header) = header else { return Ok(()) };
    let mut json = serde_json::Deserializer::from_slice(header);
    match json.deserialize_map(Ends(file.len() as u64)) {
        Ok(true) => Err(SafeTensorError::MetadataIncompleteBuffer),
        Ok(false) | Err(_) => Ok(()),
    }
}

/// Whether any entry ends behind this byte. Every entry is looked at, also one whose name comes again.
struct Ends(u64);

impl<'de> Visitor<'de> for Ends {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the tensors of a safetensors header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<bool, A::Error> {
        let mut behind = false;
        while let Some((_, entry)) = entries.next_entry::<Value, Value>()? {
            let offsets = entry.get("data_offsets").and_then(Value::as_array);
            let mut ends = offsets.into_iter().flatten().filter_map(Value::as_u64);
            behind |= ends.any(|end| end > self.0);
        }
        Ok(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes
    }

    #[test]
    fn a_tensor_behind_the_end_is_found_even_below_another_of_its_name() {
        let end = |end: u64| format!(r#""a":{{"dtype":"U8","shape":[1],"data_offsets":[0,{end}]}}"#);
        assert!(check(&file(&format!("{{{}}}", end(9)))).is_ok());
        assert!(check(&file(&format!("{{{},{}}}", end(u64::MAX), end(9)))).is_err());
    }

    #[test]
    fn what_is_no_header_is_left_to_the_crate() {
        for bytes in [&b""[..], b"1234567", &file("{"), &file("[1]"), &[255; 20]] {
            assert!(check(bytes).is_ok());
        }
    }
}
