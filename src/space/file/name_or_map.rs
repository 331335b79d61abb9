//! [`name_or_map`]: entries that are a bare name, or keys and values.

/// A form that is either a bare name or keys and values: what is expected, how a name and how keys are read, and the
/// name of its schema with the forms that it allows.
macro_rules! name_or_map {
    ($entry:ty, $expecting:expr, $name:expr, $map:expr, $schema:literal, |$($part:ident: $of:ty),*| $forms:tt) => {
        impl<'de> Deserialize<'de> for $entry {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct EntryVisitor;

                impl<'de> Visitor<'de> for EntryVisitor {
                    type Value = $entry;

                    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                        formatter.write_str($expecting)
                    }

                    fn visit_str<E: de::Error>(self, name: &str) -> Result<$entry, E> {
                        let read: fn(&str) -> Option<$entry> = $name;
                        read(name).ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$entry, A::Error> {
                        Deserialize::deserialize(de::value::MapAccessDeserializer::new(map)).map($map)
                    }
                }

                deserializer.deserialize_any(EntryVisitor)
            }
        }

        impl JsonSchema for $entry {
            fn schema_name() -> Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                $(let $part = generator.subschema_for::<$of>();)*
                json_schema!($forms)
            }
        }
    };
}

pub(super) use name_or_map;
