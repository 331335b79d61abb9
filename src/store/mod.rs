//! The results database: the only SQL of the program.
