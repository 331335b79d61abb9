//! [`SqlValue`]: one value of a result.

use std::borrow::Cow;

/// One value of a result, of whichever type it has; text and blobs may be borrowed from the row.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
}

impl SqlValue<'_> {
    /// The value with text and blobs of its own.
    pub fn into_owned(self) -> SqlValue<'static> {
        match self {
            Self::Null => SqlValue::Null,
            Self::Integer(value) => SqlValue::Integer(value),
            Self::Real(value) => SqlValue::Real(value),
            Self::Text(text) => SqlValue::Text(Cow::Owned(text.into_owned())),
            Self::Blob(bytes) => SqlValue::Blob(Cow::Owned(bytes.into_owned())),
        }
    }
}
