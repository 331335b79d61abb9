//! Rebuilds when the schema changes: `sqlx::migrate!` embeds its folder and cargo does not see it otherwise.
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
