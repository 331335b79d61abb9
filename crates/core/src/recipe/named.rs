//! Enums whose values have one row each in a table: the row holds the name, and all else that is to be known.

/// Makes an enum of the rows of its table: iteration, names, and serde and schema by name. The rows, a slice, stand in the order of the enum and
/// have the fields `kind`, `name`, `aliases` and `about`.
macro_rules! named {
    ($kind:ty, $row:ty, $rows:expr, $schema:literal, $about:literal) => {
        impl $kind {
            /// Values of the enum, in the order of the table.
            pub const ALL: [Self; $rows.len()] = {
                let mut all = [$rows[0].kind; $rows.len()];
                let mut index = 0;
                while index < all.len() {
                    all[index] = $rows[index].kind;
                    assert!(all[index] as usize == index, "the rows stand in the order of the enum");
                    index += 1;
                }
                all
            };

            /// Names of the values, in the order of the table.
            pub const NAMES: [&'static str; $rows.len()] = {
                let mut names = [""; $rows.len()];
                let mut index = 0;
                while index < names.len() {
                    names[index] = $rows[index].name;
                    index += 1;
                }
                names
            };

            /// Row of the value, with all that is known of it.
            pub const fn row(self) -> &'static $row {
                &$rows[self as usize]
            }

            /// Name in recipes and study files.
            pub const fn name(self) -> &'static str {
                self.row().name
            }

            /// The one that has this name, or has it as an alias.
            pub fn from_name(name: &str) -> Option<Self> {
                let is_it = |kind: &Self| kind.name() == name || kind.row().aliases.contains(&name);
                Self::ALL.into_iter().find(is_it)
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::from_name(&name).ok_or_else(|| serde::de::Error::unknown_variant(&name, &Self::NAMES))
            }
        }

        impl schemars::JsonSchema for $kind {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let one = |kind: Self| {
                    serde_json::json!({"type": "string", "const": kind.name(), "description": kind.row().about})
                };
                schemars::json_schema!({"description": $about, "oneOf": Self::ALL.map(one)})
            }
        }
    };
}

pub(super) use named;
