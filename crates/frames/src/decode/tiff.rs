//! TIFF files (TIFF 6.0, and BigTIFF): the directory, and strips or tiles of samples.
//!
//! The decoder behind the `image` crate refuses or misreads much of what cameras, scanners and scientific programs write: planes
//! apart in tiles, palettes, gray with alpha, 4 and 12 bits, bits in reverse order, JPEG in YCbCr. These are read here. What is
//! not (fax, and JPEG of four colours) is left to it.

use std::io::Read;

use flate2::read::ZlibDecoder;

use super::kind::DEVELOP;
use super::orientation::xmp_orientation;
use super::{Decoded, SampleBits, check_bytes, decode_as, divided_by_alpha, from_cmyk, jpeg, onto_white};
use crate::PictureError;

/// Tags of a directory.
mod tag {
    pub(super) const ORIENTATION: u16 = 274;
    pub(super) const XMP: u16 = 700;
    pub(super) const MAKE: u16 = 271;
    pub(super) const SUB_IFDS: u16 = 330;
    pub(super) const DNG_VERSION: u16 = 50_706;
    pub(super) const NEW_SUBFILE_TYPE: u16 = 254;
    pub(super) const WIDTH: u16 = 256;
    pub(super) const HEIGHT: u16 = 257;
    pub(super) const BITS: u16 = 258;
    pub(super) const COMPRESSION: u16 = 259;
    pub(super) const PHOTOMETRIC: u16 = 262;
    pub(super) const FILL_ORDER: u16 = 266;
    pub(super) const STRIP_OFFSETS: u16 = 273;
    pub(super) const SAMPLES: u16 = 277;
    pub(super) const ROWS_PER_STRIP: u16 = 278;
    pub(super) const STRIP_BYTES: u16 = 279;
    pub(super) const PLANAR: u16 = 284;
    pub(super) const PREDICTOR: u16 = 317;
    pub(super) const COLOR_MAP: u16 = 320;
    pub(super) const TILE_WIDTH: u16 = 322;
    pub(super) const TILE_HEIGHT: u16 = 323;
    pub(super) const TILE_OFFSETS: u16 = 324;
    pub(super) const TILE_BYTES: u16 = 325;
    pub(super) const EXTRA_SAMPLES: u16 = 338;
    pub(super) const SAMPLE_FORMAT: u16 = 339;
    pub(super) const JPEG_TABLES: u16 = 347;
}

/// Pages of a file beyond this are not looked at.
const MOST_PAGES: usize = 64;

/// Pillow reads RGB with up to so many samples more.
const MOST_EXTRA_SAMPLES: usize = 3;

/// Values of a tag beyond this are not read: strips of a picture of the largest size.
const MOST_VALUES: usize = 1 << 22;

struct Reader<'a> {
    bytes: &'a [u8],
    big_endian: bool,
    big: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let big_endian = bytes.starts_with(b"MM");
        let mut reader = Self { bytes, big_endian, big: false };
        reader.big = reader.short(2)? == 43;
        Some(reader)
    }

    fn number<const N: usize>(&self, at: usize) -> Option<u64> {
        let bytes: &[u8; N] = self.bytes.get(at..)?.first_chunk()?;
        let fold = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if self.big_endian { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) })
    }

    fn short(&self, at: usize) -> Option<u16> {
        self.number::<2>(at).map(|number| number as u16)
    }

    fn offset(&self, at: usize) -> Option<usize> {
        let offset = if self.big { self.number::<8>(at) } else { self.number::<4>(at) };
        offset.and_then(|offset| usize::try_from(offset).ok())
    }

    /// Where the directories lie.
    fn directories(&self) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let mut next = self.offset(if self.big { 8 } else { 4 });
        while let Some(at) = next.filter(|at| *at != 0 && !found.contains(at) && found.len() < MOST_PAGES) {
            found.push(at);
            let Some((start, entry, count)) = self.entries(at) else { break };
            next = self.offset(start + entry * count);
        }
        found
    }

    /// First entry, size of an entry, and number of entries.
    fn entries(&self, at: usize) -> Option<(usize, usize, usize)> {
        let count = if self.big { self.number::<8>(at)? } else { self.number::<2>(at)? };
        let count = usize::try_from(count).ok().filter(|&count| u16::try_from(count).is_ok())?;
        Some(if self.big { (at + 8, 20, count) } else { (at + 2, 12, count) })
    }

    /// The values of a tag, or its bytes; `None` if it is not there.
    fn values(&self, directory: usize, wanted: u16) -> Option<Vec<u64>> {
        let (start, size, count) = self.entries(directory)?;
        let at = (0..count).map(|i| start + i * size).find(|&at| self.short(at) == Some(wanted))?;
        let width = match self.short(at + 2)? {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 13 => 4,
            16..=18 => 8,
            _ => return None,
        };
        let (count, inline) = if self.big { (self.number::<8>(at + 4)?, 8) } else { (self.number::<4>(at + 4)?, 4) };
        let count = usize::try_from(count).ok().filter(|&count| count <= MOST_VALUES)?;
        let value = at + 4 + inline;
        let start = if count * width <= inline { value } else { self.offset(value)? };
        self.bytes.get(start..start.checked_add(count * width)?)?;
        let read = |at: usize| match width {
            1 => self.number::<1>(at),
            2 => self.number::<2>(at),
            4 => self.number::<4>(at),
            _ => self.number::<8>(at),
        };
        (0..count).map(|i| read(start + i * width)).collect()
    }

    fn value(&self, directory: usize, wanted: u16) -> Option<u64> {
        self.values(directory, wanted)?.first().copied()
    }
}

/// What the extra sample of RGB is (tag `ExtraSamples`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alpha {
    /// Not there, or something else.
    None,
    /// Opacity.
    Straight,
    /// Opacity, with which the colours are multiplied.
    Multiplied,
}

/// What the directory says of a page.
#[allow(clippy::struct_excessive_bools)] // four independent facts
struct Page {
    width: usize,
    height: usize,
    bits: usize,
    samples: usize,
    photometric: u64,
    compression: u64,
    reversed: bool,
    planes_apart: bool,
    predictor: bool,
    alpha: Alpha,
    /// Size of a strip or tile.
    chunk: [usize; 2],
    tiled: bool,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
    color_map: Vec<u64>,
    jpeg_tables: Vec<u8>,
}

/// The number of pages that are pictures of their own, and the place of the first that is no preview of another.
pub(super) fn pages(contents: &[u8]) -> Option<(usize, usize)> {
    let reader = Reader::new(contents)?;
    let directories = reader.directories();
    let is_preview = |at: usize| reader.value(at, tag::NEW_SUBFILE_TYPE).is_some_and(|kind| kind & 1 == 1);
    let whole: Vec<_> = directories.iter().copied().filter(|&at| !is_preview(at)).collect();
    whole.first().or(directories.first()).map(|&first| (whole.len().max(1), first))
}

/// What a TIFF is that holds the data of a camera's sensor. Its pages are previews, too small to stand for the picture.
fn raw_kind(reader: &Reader) -> Option<&'static str> {
    const CFA: u64 = 32_803; // a color filter array, as the Bayer pattern is one
    const LINEAR_RAW: u64 = 34_892;
    // Compression of sensor data: Sony, Nikon, Pentax.
    const RAW_COMPRESSIONS: [u64; 3] = [32_767, 34_713, 65_535];
    if reader.bytes.get(8..10) == Some(b"CR") {
        return Some("a camera's raw picture (Canon CR2)");
    }
    let pages = reader.directories();
    let &first = pages.first()?;
    if reader.value(first, tag::DNG_VERSION).is_some() {
        return Some("a camera's raw picture (DNG)");
    }
    let below = pages.iter().filter_map(|&page| reader.values(page, tag::SUB_IFDS)).flatten().take(MOST_PAGES);
    let below: Vec<_> = below.filter_map(|at| usize::try_from(at).ok()).collect();
    let is_raw = |&at: &usize| {
        matches!(reader.value(at, tag::PHOTOMETRIC), Some(CFA | LINEAR_RAW))
            || reader.value(at, tag::COMPRESSION).is_some_and(|compression| RAW_COMPRESSIONS.contains(&compression))
    };
    if !pages.iter().chain(&below).any(is_raw) {
        return None;
    }
    let make: Vec<u8> = reader.values(first, tag::MAKE).unwrap_or_default().iter().map(|&byte| byte as u8).collect();
    let kinds = [
        (&b"NIKON"[..], "a camera's raw picture (Nikon NEF)"),
        (b"SONY", "a camera's raw picture (Sony ARW)"),
        (b"PENTAX", "a camera's raw picture (Pentax PEF)"),
        (b"SAMSUNG", "a camera's raw picture (Samsung SRW)"),
    ];
    let kind = kinds.iter().find(|(name, _)| make.to_ascii_uppercase().starts_with(name));
    Some(kind.map_or("a camera's raw picture", |&(_, kind)| kind))
}

/// The first page that is no preview, the largest colour sample, if samples have 16 bits, and the number of pages.
pub(super) fn decode(contents: &[u8], bits: SampleBits) -> Result<(Decoded, Option<u16>, usize), PictureError> {
    let by_other = || decode_as(contents, image::ImageFormat::Tiff, bits);
    let found = Reader::new(contents).zip(pages(contents));
    let Some((reader, (pages, directory))) = found else { return by_other().map(|(page, most)| (page, most, 1)) };
    if let Some(kind) = raw_kind(&reader) {
        return Err(PictureError::OtherKind { kind, advice: DEVELOP });
    }
    let formats = reader.values(directory, tag::SAMPLE_FORMAT).unwrap_or_default();
    if let Some(what) = formats.iter().find_map(|format| match format {
        2 => Some("a TIFF of signed samples"),
        3 => Some("a TIFF of floating-point samples"),
        5 | 6 => Some("a TIFF of complex samples"),
        _ => None,
    }) {
        return Err(PictureError::Unsupported(what.into()));
    }
    let Some(page) = Page::read(&reader, directory) else {
        if let Some(what) = unread(&reader, directory) {
            return Err(PictureError::Unsupported(what));
        }
        return by_other().map(|(page, most)| (page, most, pages));
    };
    check_bytes(page.width as u32, page.height as u32, (page.samples * page.bits.div_ceil(8)).min(255) as u8)?;
    if page.width == 0 || page.height == 0 {
        return Err(PictureError::NoPixels { width: page.width as u32, height: page.height as u32 });
    }
    let (decoded, largest) = page.decode(&reader, bits)?;
    Ok((decoded, largest, pages))
}

/// The orientation by the tag of the page that is decoded, else by its XMP.
pub(super) fn metadata(contents: &[u8]) -> Option<u8> {
    let (reader, (_, page)) = (Reader::new(contents)?, pages(contents)?);
    if let Some(value) = reader.value(page, tag::ORIENTATION) {
        return u8::try_from(value).ok();
    }
    let xmp: Vec<u8> = reader.values(page, tag::XMP)?.iter().map(|&byte| byte as u8).collect();
    xmp_orientation(&xmp)
}

/// Why a page is not read, where another decoder would fail at it or ignore what its tags say.
fn unread(reader: &Reader, page: usize) -> Option<String> {
    let value = |tag, default| reader.value(page, tag).unwrap_or(default);
    let bits = reader.value(page, tag::BITS).unwrap_or(1);
    let compression = match value(tag::COMPRESSION, 1) {
        2 => Some("a fax code (CCITT modified Huffman)"),
        3 => Some("a fax code (CCITT Group 3)"),
        6 => Some("old-style JPEG"),
        33_003 | 33_005 | 34_712 => Some("JPEG 2000"),
        34_887 => Some("LERC"),
        34_925 => Some("LZMA"),
        50_000 => Some("Zstandard"),
        50_001 => Some("WebP"),
        50_002 => Some("JPEG XL"),
        _ => None,
    };
    let colours = match value(tag::PHOTOMETRIC, 1) {
        4 => Some("a transparency mask instead of colours"),
        6 => Some("YCbCr colours without JPEG"),
        8..=10 => Some("L*a*b* colours"),
        _ => None,
    };
    compression
        .map(|name| format!("a TIFF compressed with {name}"))
        .or_else(|| colours.map(|name| format!("a TIFF with {name}")))
        .or_else(|| (bits > 16).then(|| format!("a TIFF of {bits} bits per sample")))
        .or_else(|| (value(tag::PLANAR, 1) == 2).then(|| "a TIFF with separate planes (PlanarConfiguration 2)".into()))
        .or_else(|| (value(tag::FILL_ORDER, 1) == 2).then(|| "a TIFF with reversed bits (FillOrder 2)".into()))
}

impl Page {
    fn read(reader: &Reader, at: usize) -> Option<Self> {
        let value = |tag, default| reader.value(at, tag).unwrap_or(default);
        let size =
            |tag| reader.value(at, tag).and_then(|size| usize::try_from(size).ok()).filter(|&size| size < 1 << 20);
        let (width, height) = (size(tag::WIDTH)?, size(tag::HEIGHT)?);
        let samples = value(tag::SAMPLES, 1) as usize;
        let all_bits = reader.values(at, tag::BITS).unwrap_or_else(|| vec![1]);
        let bits = *all_bits.first()? as usize;
        let photometric = value(tag::PHOTOMETRIC, 1);
        let compression = value(tag::COMPRESSION, 1);
        // As libtiff: only LZW and Deflate have a predictor.
        let predictor = if matches!(compression, 5 | 8 | 32946) { value(tag::PREDICTOR, 1) } else { 1 };
        let colours = match photometric {
            0 | 1 | 3 => 1,
            2 => 3,
            5 if compression != 7 => 4,
            6 if compression == 7 => 3,
            _ => return None,
        };
        let known = (1..=16).contains(&bits)
            && all_bits.iter().all(|&other| other as usize == bits)
            && matches!(compression, 1 | 5 | 7 | 8 | 32773 | 32946)
            && (colours..=colours + MOST_EXTRA_SAMPLES).contains(&samples)
            && (predictor == 1 || predictor == 2 && matches!(bits, 8 | 16))
            && (compression != 7 || bits == 8);
        if !known {
            return None;
        }
        let tiled = reader.value(at, tag::TILE_WIDTH).is_some();
        let (chunk, offsets, lengths) = if tiled {
            ([size(tag::TILE_WIDTH)?, size(tag::TILE_HEIGHT)?], tag::TILE_OFFSETS, tag::TILE_BYTES)
        } else {
            // Some writers say 2^32 - 1, or more rows than there are, or nothing.
            let rows = value(tag::ROWS_PER_STRIP, u64::MAX).min(height.max(1) as u64) as usize;
            ([width, rows], tag::STRIP_OFFSETS, tag::STRIP_BYTES)
        };
        if chunk.contains(&0) && width > 0 && height > 0 {
            return None;
        }
        let extra = reader.value(at, tag::EXTRA_SAMPLES);
        let alpha = match extra {
            _ if photometric != 2 || samples == colours => Alpha::None,
            Some(0) => Alpha::None,
            Some(1) => Alpha::Multiplied,
            // Some writers do not say what the fourth sample is.
            _ => Alpha::Straight,
        };
        Some(Self {
            width,
            height,
            bits,
            samples,
            photometric,
            compression,
            reversed: value(tag::FILL_ORDER, 1) == 2,
            planes_apart: value(tag::PLANAR, 1) == 2 && samples > 1,
            predictor: predictor == 2,
            alpha,
            chunk,
            tiled,
            offsets: reader.values(at, offsets)?,
            lengths: reader.values(at, lengths)?,
            color_map: if photometric == 3 { reader.values(at, tag::COLOR_MAP)? } else { Vec::new() },
            jpeg_tables: reader.values(at, tag::JPEG_TABLES).unwrap_or_default().iter().map(|&b| b as u8).collect(),
        })
    }

    fn decode(&self, reader: &Reader, bits: SampleBits) -> Result<(Decoded, Option<u16>), PictureError> {
        let damaged = || PictureError::CutShortTiff;
        let [chunk_width, chunk_height] = self.chunk;
        let (across, down) = (self.width.div_ceil(chunk_width), self.height.div_ceil(chunk_height));
        let (planes, per_chunk) = if self.planes_apart { (self.samples, 1) } else { (1, self.samples) };
        let mut samples = vec![0_u16; self.width * self.height * self.samples];
        let mut as_rgb = false;
        for plane in 0..planes {
            for (row, column) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
                let number = (plane * down + row) * across + column;
                let (Some(&offset), Some(&length)) = (self.offsets.get(number), self.lengths.get(number)) else {
                    return Err(damaged());
                };
                let data =
                    usize::try_from(offset).ok().and_then(|offset| reader.bytes.get(offset..)).ok_or_else(damaged)?;
                let data = data.get(..usize::try_from(length).unwrap_or(usize::MAX)).ok_or_else(damaged)?;
                let rows = if self.tiled { chunk_height } else { chunk_height.min(self.height - row * chunk_height) };
                let (values, width) = if self.compression == 7 {
                    let (values, width, rgb) = self.jpeg(data, per_chunk)?;
                    as_rgb |= rgb;
                    (values, width)
                } else {
                    (self.chunk(reader, data, rows, per_chunk).ok_or_else(damaged)?, chunk_width)
                };
                // Tiles reach over the edges.
                for y in 0..rows.min(self.height - row * chunk_height) {
                    for x in 0..chunk_width.min(self.width - column * chunk_width) {
                        let to =
                            ((row * chunk_height + y) * self.width + column * chunk_width + x) * self.samples + plane;
                        let from = (y * width + x) * per_chunk;
                        let from = values.get(from..from + per_chunk).ok_or_else(damaged)?;
                        samples[to..to + per_chunk].copy_from_slice(from);
                    }
                }
            }
        }
        // Ink of 16 bits has all of them.
        let largest = (self.bits == 16 && self.photometric <= 2).then(|| self.largest(&samples));
        Ok(((self.rgb(&samples, as_rgb, bits), self.width, self.height), largest))
    }

    /// The samples of a strip or tile, of `rows` rows.
    fn chunk(&self, reader: &Reader, data: &[u8], rows: usize, per_pixel: usize) -> Option<Vec<u16>> {
        let row_samples = self.chunk[0] * per_pixel;
        let row_bytes = (row_samples * self.bits).div_ceil(8);
        let expected = row_bytes * rows;
        if expected as u64 > crate::MAX_PICTURE_BYTES {
            return None;
        }
        // No compression makes data twice as long: strips that claim more, the whole file say, are not read over and over.
        let data = &data[..data.len().min(2 * expected + 1024)];
        let reversed: Vec<u8>;
        let data = if self.reversed {
            reversed = data.iter().map(|byte| byte.reverse_bits()).collect();
            &reversed[..]
        } else {
            data
        };
        let mut unpacked = match self.compression {
            1 => data.to_vec(),
            5 => unpack_lzw(data, expected)?,
            32773 => unpack_bits(data, expected)?,
            _ => {
                let mut unpacked = Vec::new();
                ZlibDecoder::new(data).take(expected as u64).read_to_end(&mut unpacked).ok()?;
                unpacked
            }
        };
        if unpacked.len() < expected {
            return None;
        }
        unpacked.truncate(expected);
        let mut values = Vec::with_capacity(row_samples * rows);
        for row in unpacked.chunks(row_bytes.max(1)) {
            let start = values.len();
            match self.bits {
                8 => values.extend(row.iter().map(|&byte| u16::from(byte))),
                16 => {
                    values.extend(row.as_chunks().0.iter().map(|&pair| {
                        if reader.big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
                    }));
                }
                bits => values.extend((0..row_samples).map(|i| packed(row, i * bits, bits))),
            }
            if self.predictor {
                let mask = if self.bits == 8 { 0xFF } else { 0xFFFF };
                for i in start + per_pixel..values.len() {
                    values[i] = values[i].wrapping_add(values[i - per_pixel]) & mask;
                }
            }
        }
        Some(values)
    }

    /// A strip or tile that is a JPEG: its samples, its width, and whether they are RGB, whatever the file says.
    fn jpeg(&self, data: &[u8], per_pixel: usize) -> Result<(Vec<u16>, usize, bool), PictureError> {
        // The tables of all JPEGs of the file, without its end marker, go behind the start marker of this one.
        let tables = self.jpeg_tables.strip_prefix(b"\xFF\xD8").unwrap_or_default();
        let tables = tables.strip_suffix(b"\xFF\xD9").unwrap_or(tables);
        let Some(rest) = data.strip_prefix(b"\xFF\xD8") else { return Err(PictureError::CutShortTiff) };
        let mut joined = [b"\xFF\xD8", tables].concat();
        // Without a marker of its own, three components are taken for YCbCr, which these are not.
        if self.photometric == 2 {
            joined.extend(b"\xFF\xEE\0\x0EAdobe\0\x64\0\0\0\0\0");
        }
        joined.extend(rest);
        let (rgb, width, _) = match jpeg::examine(&joined)? {
            jpeg::Decoding::Usual(contents) => decode_as(&contents, image::ImageFormat::Jpeg, SampleBits::ALL)?.0,
            jpeg::Decoding::Unusual(contents) => jpeg::decode_unusual(&contents)?,
        };
        let values = match per_pixel {
            1 => rgb.iter().map(|pixel| u16::from(pixel[0])).collect(),
            3 => rgb.as_flattened().iter().map(|&value| u16::from(value)).collect(),
            _ => return Err(PictureError::Unsupported("a TIFF with JPEG data and alpha".into())),
        };
        Ok((values, width, per_pixel == 3))
    }

    /// The largest sample that is a colour.
    fn largest(&self, samples: &[u16]) -> u16 {
        let colours = if self.photometric == 2 { 3 } else { 1 };
        samples.chunks_exact(self.samples).flat_map(|pixel| &pixel[..colours]).copied().max().unwrap_or(0)
    }

    /// As Pillow makes 8-bit RGB of them, `bits` of 16 being used.
    fn rgb(&self, samples: &[u16], as_rgb: bool, bits: SampleBits) -> Vec<[u8; 3]> {
        let most = (1_u32 << self.bits) - 1;
        let byte = |value: u16| match self.bits {
            8 => value as u8,
            // Of more bits, the high 8.
            9..=16 => (value >> (self.bits - 8)) as u8,
            _ => (u32::from(value) * 255 / most) as u8,
        };
        let colour = |value: u16| if self.bits == 16 { bits.byte(value) } else { byte(value) };
        let map = |value: u16| {
            let size = self.color_map.len() / 3;
            let entry = |colour: usize| self.color_map.get(colour * size + usize::from(value)).copied().unwrap_or(0);
            [0, 1, 2].map(|colour| (entry(colour) >> 8) as u8)
        };
        samples
            .chunks_exact(self.samples)
            .map(|pixel| match self.photometric {
                0 => [!colour(pixel[0]); 3],
                1 => [colour(pixel[0]); 3],
                3 => map(pixel[0]),
                5 => from_cmyk([0, 1, 2, 3].map(|ink| byte(pixel[ink]))),
                _ if self.alpha != Alpha::None && !as_rgb => {
                    let pixel = [colour(pixel[0]), colour(pixel[1]), colour(pixel[2]), byte(pixel[3])];
                    onto_white(if self.alpha == Alpha::Multiplied { divided_by_alpha(pixel) } else { pixel })
                }
                _ => [colour(pixel[0]), colour(pixel[1]), colour(pixel[2])],
            })
            .collect()
    }
}

/// The `bits` bits from bit `at` of a row on, the highest first.
fn packed(row: &[u8], at: usize, bits: usize) -> u16 {
    (at..at + bits).fold(0, |value, bit| value << 1 | u16::from(row[bit / 8] >> (7 - bit % 8) & 1))
}

/// LZW as TIFF has it: highest bits first, codes that grow one entry early.
fn unpack_lzw(data: &[u8], expected: usize) -> Option<Vec<u8>> {
    let mut decoder = weezl::decode::Decoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8);
    let mut unpacked = vec![0; expected];
    let (mut read, mut written) = (0, 0);
    while written < expected {
        let result = decoder.decode_bytes(&data[read..], &mut unpacked[written..]);
        read += result.consumed_in;
        written += result.consumed_out;
        match result.status.ok()? {
            weezl::LzwStatus::Ok if result.consumed_in + result.consumed_out > 0 => {}
            _ => break,
        }
    }
    unpacked.truncate(written);
    Some(unpacked)
}

/// `PackBits` (TIFF 6.0, section 9).
fn unpack_bits(data: &[u8], expected: usize) -> Option<Vec<u8>> {
    let (mut unpacked, mut rest) = (Vec::new(), data);
    while unpacked.len() < expected {
        let (&length, after) = rest.split_first()?;
        rest = match length as i8 {
            -128 => after,
            count @ 0.. => {
                let (bytes, after) = after.split_at_checked(count as usize + 1)?;
                unpacked.extend(bytes);
                after
            }
            count => {
                let (&byte, after) = after.split_first()?;
                unpacked.extend(std::iter::repeat_n(byte, usize::from(count.unsigned_abs()) + 1));
                after
            }
        };
    }
    Some(unpacked)
}
