//! SVG to PNG, at twice the size and with a font of our own, so that a machine without fonts draws the same picture.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

/// Pixels for each pixel of the SVG: pictures are looked at on dense screens.
const SCALE: f32 = 2.0;

const FAMILY: &str = "DejaVu Sans";

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(include_bytes!("font/DejaVuSans.ttf").to_vec());
    fonts.load_font_data(include_bytes!("font/DejaVuSans-Bold.ttf").to_vec());
    fonts.set_sans_serif_family(FAMILY);
    Arc::new(fonts)
});

/// An SVG that cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    #[error("the chart cannot be read as SVG: {0}")]
    Svg(#[from] resvg::usvg::Error),
    #[error("a picture of {width} by {height} pixels cannot be drawn")]
    Size { width: u32, height: u32 },
    #[error("the picture cannot be written as PNG: {reason}")]
    Png { reason: String },
}

/// The picture of an SVG as a PNG file.
///
/// # Errors
/// Where the SVG is none or too large; the charts of this program are neither.
pub fn png(svg: &str) -> Result<Vec<u8>, PictureError> {
    let options = Options {
        font_family: FAMILY.to_owned(),
        fontdb: Arc::clone(&FONTS),
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size();
    let (width, height) = (
        (size.width() * SCALE).ceil() as u32,
        (size.height() * SCALE).ceil() as u32,
    );
    let mut pixels = Pixmap::new(width, height).ok_or(PictureError::Size { width, height })?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| PictureError::Png {
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::charts::svg::{Anchor, Svg, Weight};

    #[test]
    fn text_leaves_ink_without_any_font_of_the_system() {
        let empty = Svg::new(60.0, 30.0, "t").finish();
        let mut svg = Svg::new(60.0, 30.0, "t");
        svg.text(5.0, 20.0, Anchor::Start, Weight::Strong, "loss ↓");
        let (empty, text) = (png(&empty).unwrap(), png(&svg.finish()).unwrap());
        assert_eq!(&text[1..4], b"PNG");
        assert!(text.len() > empty.len() + 100, "{} against {}", text.len(), empty.len());
    }
}
