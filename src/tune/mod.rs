//! The study loop: ask, decide, run, tell, record.
