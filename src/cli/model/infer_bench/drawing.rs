//! The curve of what was measured, as a file.

use super::args::Args;
use crate::cli::CliError;
use crate::cli::page_output::write_page;
use crate::cli::terminal::output::tell;
use crate::report::charts::{CurveLine, curve_svg};

/// Draws the curve, where it is asked for.
pub(super) fn draw(args: &Args, title: &str, lines: &[CurveLine]) -> Result<(), CliError> {
    let Some(path) = &args.svg else {
        return Ok(());
    };
    write_page(path, curve_svg(lines, title).as_bytes(), "--svg")?;
    tell(format_args!("drawing in {}", path.display()));
    Ok(())
}
