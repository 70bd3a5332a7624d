//! In the place of `cluster`, where that is not built in.

use maud::{Markup, html};

use super::Sight;
use super::live::Live;

pub(super) fn content(_: &Sight<'_>, _: &Live) -> Markup {
    html! {}
}
