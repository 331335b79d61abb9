//! The scripts and the style of the pages, which are part of the program.

/// A file of a page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    pub name: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! script {
    ($name:literal) => {
        Asset {
            name: $name,
            content_type: SCRIPT,
            text: include_str!(concat!("assets/", $name)),
        }
    };
}

/// The style of every page.
pub const STYLE: Asset = Asset {
    name: "page.css",
    content_type: "text/css; charset=utf-8",
    text: include_str!("assets/page.css"),
};

/// The picture beside a page's title.
pub const ICON: Asset = Asset {
    name: "icon.svg",
    content_type: "image/svg+xml",
    text: include_str!("assets/icon.svg"),
};

/// The scripts of every page, in the order in which they run.
pub const PAGE_SCRIPTS: [Asset; 10] = [
    script!("base.js"),
    script!("axes.js"),
    script!("scatter.js"),
    script!("cube.js"),
    script!("parallel.js"),
    script!("lines.js"),
    script!("bars.js"),
    script!("compare.js"),
    script!("table.js"),
    script!("page.js"),
];

/// What a live page has beside them; they run last.
pub const LIVE_ASSETS: [Asset; 2] = [script!("control.js"), script!("live.js")];

/// The asset of this name.
pub fn asset(name: &str) -> Option<Asset> {
    PAGE_SCRIPTS
        .into_iter()
        .chain(LIVE_ASSETS)
        .chain([STYLE, ICON])
        .find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_asset_reaches_into_the_network_or_breaks_its_element() {
        for asset in PAGE_SCRIPTS.into_iter().chain(LIVE_ASSETS).chain([STYLE, ICON]) {
            // The name of a namespace is no address.
            let text = asset.text.replace("http://www.w3.org/", "");
            for word in [
                "http://",
                "https://",
                "</script",
                "</style",
                "@import",
                "url(",
                "innerHTML",
                "eval(",
            ] {
                assert!(!text.contains(word), "{} has {word}", asset.name);
            }
        }
    }
}
