//! What a setting costs before it runs: bytes, FLOPs and seconds by pure arithmetic.
