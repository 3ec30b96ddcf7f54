//! What a JPEG (ITU-T T.81) is, before and after it is decoded.

use std::borrow::Cow;

use image::ImageError;
use image::error::{DecodingError, ImageFormatHint};

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
    id: u8,
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
    has_tables: bool,
    /// Components of the first scan.
    first_scan: usize,
}

impl Layout {
    fn of(contents: &[u8]) -> Option<Self> {
        let (mut frame, mut has_tables) = (None, false);
        for (marker, segment) in segments(contents) {
            match marker {
                0xC4 => has_tables = true,
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => frame = Some((marker, segment)),
                0xDA => {
                    let (start_of_frame, frame) = frame?;
                    let components = frame.get(6..)?.as_chunks::<3>().0.iter().take(usize::from(frame[5]));
                    let components = components.map(|&[id, factors, _]| Component {
                        id,
                        horizontal: factors >> 4,
                        vertical: factors & 15,
                    });
                    let side = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
                    let (height, width) = (side(1)?, side(3)?);
                    let first_scan = usize::from(*segment.first()?);
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
        other => {
            PictureError::Damaged(ImageError::Decoding(DecodingError::new(ImageFormatHint::Name("JPEG".into()), other)))
        }
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

/// Whether the first scan of a sequential JPEG has data for all of its blocks. Only the Huffman codes are read. Progressive ones
/// are taken to be whole.
pub(super) fn scan_is_complete(contents: &[u8]) -> bool {
    let Some(layout) = Layout::of(contents).filter(|layout| !layout.is_progressive()) else { return true };
    scan::complete(contents, &layout.components.iter().map(|c| (c.id, c.horizontal, c.vertical)).collect::<Vec<_>>())
}

/// Reading the Huffman codes of a scan (T.81 Annex F.2.2) without the coefficients.
mod scan {
    use super::segments;

    /// Codes of each length, and the symbols in the order of their codes.
    #[derive(Clone, Default)]
    struct Table {
        counts: [u8; 16],
        symbols: Vec<u8>,
    }

    struct Bits<'a> {
        data: &'a [u8],
        buffer: u32,
        count: u32,
    }

    impl Bits<'_> {
        /// The next bit; `None` at a marker or the end.
        fn bit(&mut self) -> Option<u32> {
            if self.count == 0 {
                let (&byte, rest) = self.data.split_first()?;
                self.data = match (byte, rest.first()) {
                    (0xFF, Some(0)) => &rest[1..],
                    (0xFF, _) => return None,
                    _ => rest,
                };
                (self.buffer, self.count) = (u32::from(byte), 8);
            }
            self.count -= 1;
            Some(self.buffer >> self.count & 1)
        }

        fn symbol(&mut self, table: &Table) -> Option<u8> {
            let (mut code, mut first, mut index) = (0_i32, 0_i32, 0_i32);
            for &count in &table.counts {
                code |= self.bit()? as i32;
                let count = i32::from(count);
                if code - count < first {
                    return table.symbols.get((index + code - first) as usize).copied();
                }
                index += count;
                first = (first + count) << 1;
                code <<= 1;
            }
            None
        }

        fn skip(&mut self, bits: u8) -> Option<()> {
            (0..bits).try_for_each(|_| self.bit().map(drop))
        }

        /// Goes past a restart marker.
        fn restart(&mut self) -> Option<()> {
            self.count = 0;
            let at = self.data.windows(2).position(|pair| pair[0] == 0xFF && pair[1] != 0 && pair[1] != 0xFF)?;
            let is_restart = (0xD0..=0xD7).contains(&self.data[at + 1]);
            self.data = &self.data[at + 2..];
            is_restart.then_some(())
        }
    }

    /// One block of 64 coefficients.
    fn block(bits: &mut Bits, dc: &Table, ac: &Table) -> Option<()> {
        let size = bits.symbol(dc)?;
        bits.skip(size)?;
        let mut k = 1;
        while k < 64 {
            let symbol = bits.symbol(ac)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => k += 16,
                (_, 0) => break,
                (run, size) => {
                    bits.skip(size)?;
                    k += 1 + usize::from(run);
                }
            }
        }
        Some(())
    }

    /// Whether the first scan has all of its blocks. What cannot be understood counts as complete: the decoder judges that.
    pub(super) fn complete(contents: &[u8], components: &[(u8, u8, u8)]) -> bool {
        let mut tables: [[Table; 4]; 2] = Default::default();
        let (mut restart_interval, mut size) = (0_usize, None);
        for (marker, segment) in segments(contents) {
            match marker {
                0xC4 => drop(read_tables(segment, &mut tables)),
                0xDD if segment.len() >= 2 => {
                    restart_interval = usize::from(u16::from_be_bytes([segment[0], segment[1]]));
                }
                0xC0 | 0xC1 if segment.len() >= 5 => {
                    let side = |at: usize| usize::from(u16::from_be_bytes([segment[at], segment[at + 1]]));
                    size = Some((side(3), side(1)));
                }
                0xDA => {
                    // The segment lies within the contents, and the entropy-coded data right behind it.
                    let start = segment.as_ptr() as usize - contents.as_ptr() as usize + segment.len();
                    let Some((width, height)) = size.filter(|&(width, height)| width > 0 && height > 0) else {
                        return true;
                    };
                    let data = &contents[start..];
                    return blocks(segment, components, &tables, (width, height), restart_interval, data)
                        .unwrap_or(true);
                }
                _ => {}
            }
        }
        true
    }

    fn read_tables(mut segment: &[u8], tables: &mut [[Table; 4]; 2]) -> Option<()> {
        while let Some((&which, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let (symbols, rest) = rest.split_at_checked(counts.iter().map(|&count| usize::from(count)).sum())?;
            let table = tables.get_mut(usize::from(which >> 4))?.get_mut(usize::from(which & 15))?;
            *table = Table { counts: *counts, symbols: symbols.to_vec() };
            segment = rest;
        }
        Some(())
    }

    /// `None` where the header of the scan is not understood.
    fn blocks(
        header: &[u8],
        components: &[(u8, u8, u8)],
        tables: &[[Table; 4]; 2],
        (width, height): (usize, usize),
        restart_interval: usize,
        data: &[u8],
    ) -> Option<bool> {
        let most =
            |of: fn(&(u8, u8, u8)) -> u8| components.iter().map(of).max().filter(|&most| (1..=4).contains(&most));
        let (across, down) = (usize::from(most(|c| c.1)?), usize::from(most(|c| c.2)?));
        let count = usize::from(*header.first()?);
        let mut scan = Vec::new();
        for &[id, selectors] in header.get(1..1 + 2 * count)?.as_chunks::<2>().0 {
            let &(_, horizontal, vertical) = components.iter().find(|component| component.0 == id)?;
            let (dc, ac) = (tables[0].get(usize::from(selectors >> 4))?, tables[1].get(usize::from(selectors & 15))?);
            scan.push((usize::from(horizontal), usize::from(vertical), dc, ac));
        }
        let (units, per_unit): (usize, Vec<usize>) = match scan[..] {
            // A component in a scan of its own has only the blocks that its picture needs.
            [(horizontal, vertical, ..)] => {
                let blocks = |side: usize, factor: usize, most: usize| (side * factor).div_ceil(8 * most);
                (blocks(width, horizontal, across) * blocks(height, vertical, down), vec![1])
            }
            _ => (
                width.div_ceil(8 * across) * height.div_ceil(8 * down),
                scan.iter().map(|(horizontal, vertical, ..)| horizontal * vertical).collect(),
            ),
        };
        let mut bits = Bits { data, buffer: 0, count: 0 };
        for unit in 0..units {
            if restart_interval > 0 && unit > 0 && unit % restart_interval == 0 && bits.restart().is_none() {
                return Some(false);
            }
            for ((_, _, dc, ac), &blocks) in scan.iter().zip(&per_unit) {
                for _ in 0..blocks {
                    if block(&mut bits, dc, ac).is_none() {
                        return Some(false);
                    }
                }
            }
        }
        Some(true)
    }
}
