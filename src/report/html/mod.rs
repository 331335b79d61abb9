//! A study as a web page: one data model for the file that `report` writes and for the pages that `dashboard` serves.
//!
//! [`StudyView`] is everything a page shows, as plain values; the scripts in `assets/` draw it. [`document`] puts the two
//! into one file that needs no network; the dashboard serves the same scripts beside the same values.

mod assets;
mod build;
mod costs;
mod document;
mod embed;
mod growth;
mod input;
mod outcome;
mod rounded;
mod thin;
mod view;

pub use assets::{Asset, ICON, LIVE_ASSETS, PAGE_SCRIPTS, STYLE, asset};
pub use document::{DocumentError, Page, document, live_document};
pub use input::{
    Command, Confirmation, Finding, ImportanceShare, ImportanceView, MeasuredCurve, MemoryParts, PageInput, PhaseTimes,
    Prediction, TrialCurves,
};
pub use view::{
    AnswerView, AxisView, CurveView, Growth, GrowthPoint, MemoryView, ObjectiveView, PhaseView, PredictionView,
    RecommendationView, StudyHead, StudyView, TrialView,
};
