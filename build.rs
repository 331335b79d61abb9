//! Rebuilds when a migration is added: `sqlx::migrate!` embeds the folder and cargo does not see it otherwise.
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
