//! Recipe -> other tools' files.
