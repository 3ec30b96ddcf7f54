//! Decoding picture files: from the contents of a file to upright 8-bit RGB.

mod jpeg;
mod kind;
mod orientation;
mod sample_bits;
mod scans;
mod tiff;

use std::fmt;
use std::io::{Cursor, ErrorKind};

use image::error::{UnsupportedError, UnsupportedErrorKind};
use image::metadata::Orientation;
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use periplus_geometry::Raster;

use crate::PictureError;

use jpeg::Decoding;
pub use sample_bits::SampleBits;

/// The most that a decoded picture may take: 178 956 970 pixels of 8-bit RGB, which is where Pillow, too, takes a
/// picture for an attack. It bounds the memory of each thread that decodes.
pub const MAX_PICTURE_BYTES: u64 = 512 << 20;

/// The picture in the contents of a JPEG, PNG, WebP, BMP or TIFF file (told by the contents, not by a name), turned
/// upright by its EXIF orientation, as Pillow's `convert("RGB")` gives it:
///
/// - RGBA is blended onto white; gray with alpha and a transparent colour of a palette lose their transparency;
/// - of 16 bits the high 8 are taken. (For gray, Pillow would clip at 255, which leaves white pictures.) [`decode_with_warnings`] takes
///   the highest 8 of fewer bits;
/// - colour profiles are ignored, the first picture of an animation is taken.
///
/// # Errors
/// If the contents are no whole picture of a kind that is read here, or the picture is over [`MAX_PICTURE_BYTES`].
pub fn decode(contents: &[u8]) -> Result<Raster<[u8; 3]>, PictureError> {
    decode_with_warnings(contents, SampleBits::ALL).map(|(pixels, _)| pixels)
}

/// As [`decode`], with what is unusual about the picture. `bits` are those that the samples of a 16-bit picture use.
///
/// # Errors
/// As [`decode`].
pub fn decode_with_warnings(
    contents: &[u8],
    bits: SampleBits,
) -> Result<(Raster<[u8; 3]>, Vec<PictureWarning>), PictureError> {
    let Read { pixels, pages, largest } = read(contents, bits)?;
    let mut warnings = Vec::new();
    if let Some(largest) = largest {
        let used = SampleBits::holding(largest);
        if used.bits() > bits.bits() && u32::from(largest) >> bits.bits() > 0 {
            warnings.push(PictureWarning::Clipped);
        } else if bits == SampleBits::ALL && used != bits {
            warnings.push(PictureWarning::UnusedBits(used));
        }
    }
    if pages > 1 {
        warnings.push(PictureWarning::Pages(pages));
    }
    Ok((pixels, warnings))
}

/// The bits that the samples of a 16-bit picture use: the least of 8, 10, 12, 14 and 16 that holds the largest of them. `None` for other
/// pictures, and for what is no picture.
pub fn used_sample_bits(contents: &[u8]) -> Option<SampleBits> {
    const PNG_BITS: usize = 24; // where the header of a PNG has the bits of a sample
    let may_be_wide = match guess_format(contents).ok()? {
        ImageFormat::Png => contents.get(PNG_BITS) == Some(&16),
        format => format == ImageFormat::Tiff,
    };
    let largest = if may_be_wide { read(contents, SampleBits::ALL).ok()?.largest } else { None };
    largest.map(SampleBits::holding)
}

/// A picture as it was read.
struct Read {
    pixels: Raster<[u8; 3]>,
    /// Pages of the file.
    pages: usize,
    /// The largest colour sample, if samples have 16 bits.
    largest: Option<u16>,
}

fn read(contents: &[u8], bits: SampleBits) -> Result<Read, PictureError> {
    if contents.is_empty() {
        return Err(PictureError::Empty);
    }
    let format = guess_format(contents)?;
    let (decoded, largest, pages) = match format {
        ImageFormat::Jpeg => {
            if !jpeg::is_whole(contents) {
                return Err(PictureError::CutShort);
            }
            let (decoded, complete) = match jpeg::examine(contents)? {
                Decoding::Usual(contents) => (decode_as(&contents, format, bits)?.0, scans::are_complete(&contents)),
                Decoding::Unusual(contents) => (jpeg::decode_unusual(&contents)?, scans::are_complete(&contents)),
            };
            // Decoders fill what is missing of a scan with one colour, also where an end marker follows.
            if !complete {
                return Err(PictureError::CutShort);
            }
            (decoded, None, 1)
        }
        ImageFormat::Tiff => tiff::decode(contents, bits)?,
        _ => {
            let (decoded, largest) = decode_as(contents, format, bits)?;
            (decoded, largest, 1)
        }
    };
    let (rgb, width, height) = decoded;
    let pixels = upright(rgb, width, height, orientation::orientation(contents, format));
    Ok(Read { pixels, pages, largest })
}

/// What is unusual about a picture. None of it stops the clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PictureWarning {
    /// Samples of 16 bits of which only so many are used, the low ones: the picture is dark.
    UnusedBits(SampleBits),
    /// The first picture of a clip has samples of 16 bits that use only so many, the low ones. All frames are scaled by them.
    ScaledBits(SampleBits),
    /// Samples that need more bits than they were said to use.
    Clipped,
    /// A TIFF of so many pages, of which one is taken.
    Pages(usize),
}

impl fmt::Display for PictureWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnusedBits(used) => write!(
                f,
                "the samples have 16 bits and use only the lowest {}, so the picture is dark: say how many bits they use, or scale \
                 them to 16 bits",
                used.bits()
            ),
            Self::ScaledBits(bits) => write!(
                f,
                "the samples have 16 bits and use only the lowest {}: {} is taken for white in all frames; say how many bits they \
                 use, if that is wrong",
                bits.bits(),
                (1_u32 << bits.bits()) - 1
            ),
            Self::Clipped => f.write_str(
                "some samples need more bits than the samples of the clip are said to use and become white: choose more bits",
            ),
            Self::Pages(pages) => {
                write!(f, "the TIFF has {pages} pages and only the first is taken: write each page to a file of its own")
            }
        }
    }
}

/// Pixels row by row, width and height.
type Decoded = (Vec<[u8; 3]>, usize, usize);

fn guess_format(contents: &[u8]) -> Result<ImageFormat, PictureError> {
    // BigTIFF, which the `image` crate reads and does not recognise.
    if contents.starts_with(b"II\x2b\0") || contents.starts_with(b"MM\0\x2b") {
        return Ok(ImageFormat::Tiff);
    }
    match image::guess_format(contents) {
        Ok(
            format @ (ImageFormat::Jpeg | ImageFormat::Png | ImageFormat::WebP | ImageFormat::Bmp | ImageFormat::Tiff),
        ) => Ok(format),
        _ => Err(match kind::other_kind(contents) {
            Some((kind, advice)) => PictureError::OtherKind { kind, advice },
            None => PictureError::UnknownFormat,
        }),
    }
}

/// The decoder of the `image` crate, with its limits.
fn decoder(contents: &[u8], format: ImageFormat) -> Result<impl ImageDecoder + '_, PictureError> {
    let mut reader = ImageReader::with_format(Cursor::new(contents), format);
    let mut limits = Limits::default();
    // A decoder may need a second copy of the picture.
    limits.max_alloc = Some(2 * MAX_PICTURE_BYTES);
    reader.limits(limits);
    reader.into_decoder().map_err(|error| picture_error(&error, format))
}

/// Checks the bytes that a picture takes when it is decoded.
fn check_bytes(width: u32, height: u32, bytes_per_pixel: u8) -> Result<(), PictureError> {
    let pixels = u64::from(width) * u64::from(height);
    let bytes = pixels.saturating_mul(u64::from(bytes_per_pixel.max(3)));
    if bytes > MAX_PICTURE_BYTES { Err(PictureError::TooLarge { width, height, bytes }) } else { Ok(()) }
}

/// Decodes by the `image` crate; with the largest colour sample, if samples have 16 bits.
fn decode_as(contents: &[u8], format: ImageFormat, bits: SampleBits) -> Result<(Decoded, Option<u16>), PictureError> {
    let decoder = decoder(contents, format)?;
    let (width, height) = decoder.dimensions();
    let color = decoder.color_type();
    check_bytes(width, height, color.bytes_per_pixel())?;
    let mut largest = None;
    let rgb = if color == ColorType::Rgb8 {
        let mut rgb = vec![[0; 3]; width as usize * height as usize];
        decoder.read_image(rgb.as_flattened_mut()).map_err(|error| picture_error(&error, format))?;
        rgb
    } else {
        let mut samples = vec![0; decoder.total_bytes() as usize];
        decoder.read_image(&mut samples).map_err(|error| picture_error(&error, format))?;
        let colours = match color {
            ColorType::L16 => Some((1, 1)),
            ColorType::La16 => Some((1, 2)),
            ColorType::Rgb16 => Some((3, 3)),
            ColorType::Rgba16 => Some((3, 4)),
            _ => None,
        };
        if let Some((colours, channels)) = colours {
            (samples, largest) = to_bytes(&samples, colours, channels, bits);
        }
        to_rgb(&samples, color, has_alpha_channel(contents, format))?
    };
    Ok(((rgb, width as usize, height as usize), largest))
}

/// A sentence of our own: those of decoders may hold Rust debug text.
fn picture_error(error: &ImageError, format: ImageFormat) -> PictureError {
    let name = match format {
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Png => "PNG",
        ImageFormat::Tiff => "TIFF",
        ImageFormat::WebP => "WebP",
        _ => "BMP",
    };
    match error {
        ImageError::Unsupported(what) => PictureError::Unsupported(plain(what)),
        ImageError::Limits(_) => PictureError::Unsupported(format!("a {name} that needs too much memory")),
        ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            PictureError::Damaged(format!("the {name} data ends too early"))
        }
        _ => PictureError::Damaged(format!("the {name} data is not valid")),
    }
}

/// What is not supported, without the names of Rust types that decoders put into their messages.
fn plain(what: &UnsupportedError) -> String {
    match what.kind() {
        UnsupportedErrorKind::Color(color) => format!("of {} bits per pixel", bits_per_pixel(color)),
        _ => "an unusual variety of the format".into(),
    }
}

fn bits_per_pixel(color: ExtendedColorType) -> u16 {
    match color {
        ExtendedColorType::Unknown(bits) => u16::from(bits),
        other => other.bits_per_pixel(),
    }
}

/// Whether transparency comes as a channel of the file. In a PNG it may also come as a transparent colour, which
/// Pillow ignores and the decoder makes a channel of; the colour type in the header (byte 25) tells.
fn has_alpha_channel(contents: &[u8], format: ImageFormat) -> bool {
    const GRAY_ALPHA: u8 = 4;
    const RGBA: u8 = 6;
    format != ImageFormat::Png || matches!(contents.get(25), Some(&(GRAY_ALPHA | RGBA)))
}

/// The samples of 8 bits as RGB.
fn to_rgb(samples: &[u8], color: ColorType, alpha_channel: bool) -> Result<Vec<[u8; 3]>, PictureError> {
    let gray = |&value: &u8| [value; 3];
    Ok(match color {
        ColorType::L8 | ColorType::L16 => samples.iter().map(gray).collect(),
        // Pillow has no mode for 16-bit gray with alpha and opens it as RGBA, which is blended.
        ColorType::La16 if alpha_channel => {
            samples.as_chunks().0.iter().map(|&[value, alpha]| onto_white([value, value, value, alpha])).collect()
        }
        ColorType::La8 | ColorType::La16 => samples.as_chunks().0.iter().map(|[value, _]| gray(value)).collect(),
        ColorType::Rgba8 | ColorType::Rgba16 if alpha_channel => {
            samples.as_chunks().0.iter().map(|&pixel| onto_white(pixel)).collect()
        }
        ColorType::Rgba8 | ColorType::Rgba16 => {
            samples.as_chunks().0.iter().map(|&[red, green, blue, _]| [red, green, blue]).collect()
        }
        ColorType::Rgb8 | ColorType::Rgb16 => samples.as_chunks().0.to_vec(),
        _ => return Err(PictureError::Unsupported("with floating-point samples".into())),
    })
}

/// Samples of 16 bits in the machine's order as bytes, and the largest that is a colour: the first `colours` of each `channels`. Opacity
/// always has 16 bits.
fn to_bytes(samples: &[u8], colours: usize, channels: usize, bits: SampleBits) -> (Vec<u8>, Option<u16>) {
    let mut largest = 0;
    let pairs = samples.as_chunks().0.iter().enumerate();
    let bytes = pairs.map(|(at, &sample)| {
        let sample = u16::from_ne_bytes(sample);
        if at % channels >= colours {
            return SampleBits::ALL.byte(sample);
        }
        largest = largest.max(sample);
        bits.byte(sample)
    });
    (bytes.collect(), Some(largest))
}

/// A pixel of RGBA over white, rounded as Pillow's `alpha_composite` rounds over an opaque colour.
fn onto_white([red, green, blue, alpha]: [u8; 4]) -> [u8; 3] {
    let alpha = u32::from(alpha);
    [red, green, blue].map(|value| divided_by_255(u32::from(value) * alpha + 255 * (255 - alpha)))
}

/// CMYK (255 is full ink) as Pillow converts it.
fn from_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = 255 - black;
    [cyan, magenta, yellow].map(|ink| light - divided_by_255(u32::from(ink) * u32::from(light)))
}

/// A pixel whose colours are multiplied with its opacity, as Pillow divides them again.
fn divided_by_alpha([red, green, blue, alpha]: [u8; 4]) -> [u8; 4] {
    let divided =
        |value: u8| if alpha == 0 { value } else { (u32::from(value) * 255 / u32::from(alpha)).min(255) as u8 };
    [divided(red), divided(green), divided(blue), alpha]
}

/// `value / 255`, rounded, for `value` up to 255 * 255, by shifts.
fn divided_by_255(value: u32) -> u8 {
    let value = value + 128;
    ((value + (value >> 8)) >> 8) as u8
}

/// The picture turned and mirrored as its EXIF orientation asks.
#[allow(clippy::expect_used)] // an invariant, see at its end
fn upright(pixels: Vec<[u8; 3]>, width: usize, height: usize, orientation: Orientation) -> Raster<[u8; 3]> {
    use Orientation as O;
    let sideways = matches!(orientation, O::Rotate90 | O::Rotate270 | O::Rotate90FlipH | O::Rotate270FlipH);
    let (to_width, to_height) = if sideways { (height, width) } else { (width, height) };
    let pixels = if orientation == O::NoTransforms {
        pixels
    } else {
        let (right, bottom) = (width - 1, height - 1);
        let from = |x: usize, y: usize| match orientation {
            O::NoTransforms => (x, y),
            O::FlipHorizontal => (right - x, y),
            O::Rotate180 => (right - x, bottom - y),
            O::FlipVertical => (x, bottom - y),
            O::Rotate90FlipH => (y, x),
            O::Rotate90 => (y, bottom - x),
            O::Rotate270FlipH => (right - y, bottom - x),
            O::Rotate270 => (right - y, x),
        };
        let places = (0..to_height).flat_map(|y| (0..to_width).map(move |x| from(x, y)));
        places.map(|(x, y)| pixels[y * width + x]).collect()
    };
    Raster::new(to_width, to_height, pixels).expect("turning keeps the number of pixels")
}
