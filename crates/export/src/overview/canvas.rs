//! A small RGB canvas: pictures, lines, discs and digits.

use std::io::Cursor;

use image::{ImageFormat, RgbImage};

/// 8-bit sRGB.
pub(super) type Colour = [u8; 3];

/// Glyphs of 3 x 5 pixels, one octal digit per row from the top, the highest bit on the left.
const GLYPHS: [(char, u16); 14] = [
    ('0', 0o75557),
    ('1', 0o26227),
    ('2', 0o71747),
    ('3', 0o71717),
    ('4', 0o55711),
    ('5', 0o74717),
    ('6', 0o74757),
    ('7', 0o71222),
    ('8', 0o75757),
    ('9', 0o75717),
    ('.', 0o00002),
    ('-', 0o00700),
    ('e', 0o07747),
    (' ', 0o00000),
];

/// Canvas pixels per glyph pixel.
const GLYPH_SCALE: u32 = 3;

pub(super) struct Canvas(RgbImage);

impl Canvas {
    pub(super) fn new(width: u32, height: u32, background: Colour) -> Self {
        Self(RgbImage::from_pixel(width, height, image::Rgb(background)))
    }

    /// Sets a pixel. Pixels outside are ignored.
    pub(super) fn set(&mut self, x: i64, y: i64, colour: Colour) {
        self.blend(x, y, colour, 1.0);
    }

    /// Mixes a pixel with `colour`.
    pub(super) fn blend(&mut self, x: i64, y: i64, colour: Colour, opacity: f64) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        if let Some(pixel) = self.0.get_pixel_mut_checked(x, y) {
            for (old, new) in pixel.0.iter_mut().zip(colour) {
                *old = (f64::from(*old) + opacity * (f64::from(new) - f64::from(*old))).round() as u8;
            }
        }
    }

    /// A line with round ends and smooth edges. A disc if both ends are the same.
    pub(super) fn line(&mut self, from: [f64; 2], to: [f64; 2], width: f64, colour: Colour) {
        // Far outside there is nothing to draw, and clamped bounds keep the loops short.
        let limit = |x: f64, end: u32| x.clamp(-1.0, f64::from(end)) as i64;
        let reach = width / 2.0 + 1.0;
        let [left, top] = [0, 1].map(|axis| from[axis].min(to[axis]) - reach);
        let [right, bottom] = [0, 1].map(|axis| from[axis].max(to[axis]) + reach);
        let (w, h) = self.0.dimensions();
        let along = [to[0] - from[0], to[1] - from[1]];
        let length = along[0] * along[0] + along[1] * along[1];
        for y in limit(top, h)..=limit(bottom, h) {
            for x in limit(left, w)..=limit(right, w) {
                let at = [x as f64 - from[0], y as f64 - from[1]];
                let t =
                    if length > 0.0 { ((at[0] * along[0] + at[1] * along[1]) / length).clamp(0.0, 1.0) } else { 0.0 };
                let distance = (at[0] - t * along[0]).hypot(at[1] - t * along[1]);
                let coverage = (width / 2.0 + 0.5 - distance).clamp(0.0, 1.0);
                if coverage > 0.0 {
                    self.blend(x, y, colour, coverage);
                }
            }
        }
    }

    /// Writes digits with the upper left corner at (`x`, `y`). Returns their width.
    pub(super) fn digits(&mut self, x: i64, y: i64, text: &str, colour: Colour) -> i64 {
        let size = i64::from(GLYPH_SCALE);
        let mut left = x;
        for character in text.chars() {
            let glyph = GLYPHS.iter().find(|(of, _)| *of == character).map_or(0, |(_, glyph)| *glyph);
            for bit in (0..15).filter(|bit| glyph >> (14 - bit) & 1 == 1) {
                let (column, row) = (bit % 3, bit / 3);
                for (dx, dy) in (0..size).flat_map(|dy| (0..size).map(move |dx| (dx, dy))) {
                    self.set(left + column * size + dx, y + row * size + dy, colour);
                }
            }
            left += 4 * size;
        }
        left - x
    }

    /// The canvas as a PNG file.
    pub(super) fn png(&self) -> std::io::Result<Vec<u8>> {
        let mut png = Cursor::new(Vec::new());
        self.0.write_to(&mut png, ImageFormat::Png).map_err(std::io::Error::other)?;
        Ok(png.into_inner())
    }
}

/// Colours of depth, from near to far (bright to dark), after matplotlib's map "inferno".
const RAMP: [Colour; 6] = [[252, 255, 164], [252, 165, 10], [221, 81, 58], [147, 38, 103], [66, 10, 104], [0, 0, 4]];

/// The colour at `t` between 0 (near) and 1 (far).
pub(super) fn ramp(t: f64) -> Colour {
    let position = t.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let step = (position as usize).min(RAMP.len() - 2);
    mix(RAMP[step], RAMP[step + 1], position - step as f64)
}

/// The colour at `t` between `from` and `to`.
pub(super) fn mix(from: Colour, to: Colour, t: f64) -> Colour {
    [0, 1, 2].map(|channel| {
        let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
        (from + t * (to - from)).round() as u8
    })
}
