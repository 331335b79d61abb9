//! Charts as pictures (SVG and PNG) and in the terminal, drawn without a browser.

mod answers;
mod axis;
mod bars;
mod courses;
mod latency;
mod parallel;
mod png;
mod scatter;
mod svg;
mod terminal;
mod text_plot;

pub use answers::answer_picture;
pub use latency::{CurveLine, CurvePoint, curve_svg, curve_text};
pub use png::{PictureError, png};
pub use terminal::plot;

use super::html::StudyView;

/// A chart of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// File name without ending, such as `front-throughput-loss`.
    pub name: String,
    pub svg: String,
}

/// Every chart that the study has values for.
pub fn charts(view: &StudyView) -> Vec<Chart> {
    let mut charts = scatter::pairs(view);
    charts.extend(parallel::settings(view));
    charts.extend(courses::growth(view));
    charts.extend(courses::curves(view));
    charts.extend(bars::step_time(view));
    charts.extend(bars::peak_memory(view));
    charts.extend(bars::importance(view));
    let answers = view.answers.iter().filter_map(|answer| {
        Some(Chart {
            name: answer.name.to_owned(),
            svg: answer.picture.clone()?,
        })
    });
    charts.extend(answers);
    charts
}

/// A metric's name as part of a file name.
fn file_part(name: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() || character == '_' {
            character
        } else {
            '-'
        }
    };
    name.chars().map(plain).take(60).collect()
}
