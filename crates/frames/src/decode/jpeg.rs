//! What a JPEG (ITU-T T.81) is, before and after it is decoded.

use std::borrow::Cow;

use super::check_bytes;
use crate::PictureError;

/// The Huffman tables of T.81 Annex K.3, as a DHT segment: those of luma and chroma, DC and AC. Frames of a webcam's MJPEG stream
/// leave them out.
const STANDARD_TABLES: &[u8] = include_bytes!("standard_huffman_tables.bin");

/// The segments before the end of a JPEG, with their markers. After a start of scan, entropy-coded data is skipped.
pub(super) fn segments(contents: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = contents.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            let at = rest.iter().position(|&byte| byte == 0xFF)?;
            rest = &rest[at + 1..];
            match *rest.first()? {
                0xD9 => return None,
                // Fill bytes, stuffed bytes and restart markers have no length behind them.
                0xFF => {}
                0x00 | 0x01 | 0xD0..=0xD7 => rest = &rest[1..],
                marker => {
                    let length = usize::from(u16::from_be_bytes([*rest.get(1)?, *rest.get(2)?]));
                    let segment = rest.get(3..1 + length)?;
                    rest = &rest[1 + length..];
                    return Some((marker, segment));
                }
            }
        }
    })
}

/// A component of a picture.
struct Component {
    horizontal: u8,
    vertical: u8,
}

/// What the headers of a JPEG say.
struct Layout {
    start_of_frame: u8,
    width: u16,
    height: u16,
    precision: u8,
    components: Vec<Component>,
    /// Whether the first scan has all Huffman tables that it names.
    has_tables: bool,
    /// Components of the first scan.
    first_scan: usize,
}

impl Layout {
    fn of(contents: &[u8]) -> Option<Self> {
        // The Huffman tables defined so far: class (DC, AC) and number.
        let (mut frame, mut tables) = (None, [[false; 16]; 2]);
        for (marker, segment) in segments(contents) {
            match marker {
                0xC4 => note_tables(segment, &mut tables),
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => frame = Some((marker, segment)),
                0xDA => {
                    let (start_of_frame, frame) = frame?;
                    let components = frame.get(6..)?.as_chunks::<3>().0.iter().take(usize::from(frame[5]));
                    let components = components
                        .map(|&[_, factors, _]| Component { horizontal: factors >> 4, vertical: factors & 15 });
                    let side = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
                    let (height, width) = (side(1)?, side(3)?);
                    let first_scan = usize::from(*segment.first()?);
                    let selectors = segment.get(1..)?.as_chunks::<2>().0.iter().take(first_scan).map(|pair| pair[1]);
                    // A progressive picture starts with the DC coefficients alone.
                    let has_ac = |selector: u8| start_of_frame == 0xC2 || tables[1][usize::from(selector & 15)];
                    let has_tables =
                        selectors.into_iter().all(|selector| tables[0][usize::from(selector >> 4)] && has_ac(selector));
                    let (precision, components) = (frame[0], components.collect());
                    return Some(Self { start_of_frame, width, height, precision, components, has_tables, first_scan });
                }
                _ => {}
            }
        }
        None
    }

    fn is_progressive(&self) -> bool {
        self.start_of_frame == 0xC2
    }

    /// Sampling factors, as they are usually written: `2x2,1x1,1x1`.
    fn factors(&self) -> String {
        let factors = self.components.iter().map(|c| format!("{}x{}", c.horizontal, c.vertical));
        factors.collect::<Vec<_>>().join(",")
    }

    /// Whether the first component is sampled finest, each factor of the others is 1 or its own, and none is 3: what all cameras and
    /// programs write.
    fn is_usual(&self) -> bool {
        let Some((first, others)) = self.components.split_first() else { return true };
        let fits = |of: fn(&Component) -> u8| {
            matches!(of(first), 1 | 2 | 4) && others.iter().all(|c| of(c) == 1 || of(c) == of(first))
        };
        fits(|c| c.horizontal) && fits(|c| c.vertical)
    }

    /// Whether every factor is 1 or the largest along its axis. Decoders disagree on the size of others in scans of their own.
    fn is_simple(&self) -> bool {
        let fits = |of: fn(&Component) -> u8| {
            let most = self.components.iter().map(of).max().unwrap_or(1);
            self.components.iter().all(|c| of(c) == 1 || of(c) == most)
        };
        fits(|c| c.horizontal) && fits(|c| c.vertical)
    }
}

/// Notes which tables a DHT segment defines.
fn note_tables(mut segment: &[u8], tables: &mut [[bool; 16]; 2]) {
    while let Some((&which, rest)) = segment.split_first() {
        let Some((counts, rest)) = rest.split_first_chunk::<16>() else { return };
        if let Some(class) = tables.get_mut(usize::from(which >> 4)) {
            class[usize::from(which & 15)] = true;
        }
        segment = rest.get(counts.iter().map(|&count| usize::from(count)).sum()..).unwrap_or_default();
    }
}

/// How a JPEG is to be decoded.
pub(super) enum Decoding<'a> {
    /// By the usual decoder, of these contents.
    Usual(Cow<'a, [u8]>),
    /// By the decoder for components in scans of their own and for unusual sampling factors.
    Unusual(Cow<'a, [u8]>),
}

/// Chooses the decoder by what the headers say.
///
/// # Errors
/// A kind of JPEG that is not read: lossless, hierarchical, arithmetic, or of more than 8 bits.
pub(super) fn examine(contents: &[u8]) -> Result<Decoding<'_>, PictureError> {
    let Some(layout) = Layout::of(contents) else { return Ok(Decoding::Usual(contents.into())) };
    let unsupported = |what: String| Err(PictureError::Unsupported(what));
    match layout.start_of_frame {
        0xC0..=0xC2 if layout.precision != 8 => return unsupported(format!("a JPEG of {} bits", layout.precision)),
        0xC0..=0xC2 => {}
        0xC3 | 0xC7 | 0xCB | 0xCF => return unsupported("a lossless JPEG".into()),
        0xC5 | 0xC6 => return unsupported("a hierarchical JPEG".into()),
        _ => return unsupported("a JPEG with arithmetic coding".into()),
    }
    // Tables of the file come later and replace the standard ones.
    let contents: Cow<[u8]> = if layout.has_tables {
        contents.into()
    } else {
        [&contents[..2], STANDARD_TABLES, &contents[2..]].concat().into()
    };
    let apart = !layout.is_progressive() && layout.first_scan < layout.components.len();
    if layout.is_usual() && !apart {
        return Ok(Decoding::Usual(contents));
    }
    if !layout.is_simple() {
        return unsupported(format!("a JPEG with the sampling factors {}", layout.factors()));
    }
    Ok(Decoding::Unusual(contents))
}

/// Decodes a JPEG of an unusual layout.
///
/// # Errors
/// Sampling factors that are not read, colours other than gray and YCbCr or RGB, or damage.
pub(super) fn decode_unusual(contents: &[u8]) -> Result<(Vec<[u8; 3]>, usize, usize), PictureError> {
    use jpeg_decoder::{Decoder, Error, PixelFormat};
    let layout = Layout::of(contents);
    if let Some(Layout { width, height, .. }) = layout {
        check_bytes(width.into(), height.into(), 3)?;
    }
    let mut decoder = Decoder::new(contents);
    decoder.set_max_decoding_buffer_size(crate::MAX_PICTURE_BYTES as usize);
    let pixels = decoder.decode().map_err(|error| match error {
        Error::Unsupported(_) => {
            let factors = layout.as_ref().map_or(String::new(), Layout::factors);
            PictureError::Unsupported(format!("a JPEG with the sampling factors {factors}"))
        }
        _ => PictureError::Damaged("the JPEG data is not valid".into()),
    })?;
    let Some(info) = decoder.info() else { return Err(PictureError::CutShort) };
    let rgb = match info.pixel_format {
        PixelFormat::L8 => pixels.iter().map(|&value| [value; 3]).collect(),
        PixelFormat::RGB24 => pixels.as_chunks().0.to_vec(),
        _ => return Err(PictureError::Unsupported("a JPEG with four colours and an unusual layout".into())),
    };
    Ok((rgb, usize::from(info.width), usize::from(info.height)))
}

/// Whether a JPEG goes on to its end-of-image marker. Decoders fill what is missing with one colour.
pub(super) fn is_whole(contents: &[u8]) -> bool {
    let mut rest = contents.get(2..).unwrap_or_default();
    while let Some(marker) = rest.iter().position(|&byte| byte == 0xFF) {
        rest = &rest[marker + 1..];
        match rest.first() {
            Some(0xD9) => return true,
            Some(0xFF) => {}
            Some(0x00 | 0x01 | 0xD0..=0xD7) => rest = &rest[1..],
            Some(_) => match rest.get(1..3) {
                Some(&[high, low]) => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    rest = rest.get(1 + length..).unwrap_or_default();
                }
                _ => return false,
            },
            None => return false,
        }
    }
    false
}
