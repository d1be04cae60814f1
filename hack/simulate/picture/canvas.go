package picture

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// canvas draws in points; scale pixels are one point.
type canvas struct {
	img     *image.RGBA
	scale   float64
	faces   map[faceKey]font.Face
	regular *opentype.Font
	bold    *opentype.Font
}

type faceKey struct {
	size float64
	bold bool
}

type point struct{ x, y float64 }

// align says which end of a text stands at its point.
type align float64

const (
	left   align = 0
	middle align = 0.5
	right  align = 1
)

func newCanvas(width, height int, scale float64) (*canvas, error) {
	c := &canvas{scale: scale, faces: map[faceKey]font.Face{}}
	c.img = image.NewRGBA(image.Rect(0, 0, int(float64(width)*scale), int(float64(height)*scale)))
	draw.Draw(c.img, c.img.Bounds(), image.White, image.Point{}, draw.Src)
	var err error
	if c.regular, err = opentype.Parse(goregular.TTF); err != nil {
		return nil, err
	}
	c.bold, err = opentype.Parse(gobold.TTF)
	return c, err
}

func (c *canvas) write(out io.Writer) error { return png.Encode(out, c.img) }

// polygon fills an outline.
func (c *canvas) polygon(ps []point, col color.Color) { c.polygons([][]point{ps}, col) }

// polygons fills outlines that run the same way round; where they overlap the colour is laid on once.
func (c *canvas) polygons(all [][]point, col color.Color) {
	// Only the box that is touched: a rasterizer of the whole picture for every tick mark takes seconds.
	box := image.Rectangle{}
	for _, ps := range all {
		for _, p := range ps {
			x, y := int(p.x*c.scale), int(p.y*c.scale)
			box = box.Union(image.Rect(x-1, y-1, x+3, y+3))
		}
	}
	box = box.Intersect(c.img.Bounds())
	if box.Empty() {
		return
	}
	r := vector.NewRasterizer(box.Dx(), box.Dy())
	at := func(p point) (float32, float32) {
		return float32(p.x*c.scale - float64(box.Min.X)), float32(p.y*c.scale - float64(box.Min.Y))
	}
	for _, ps := range all {
		if len(ps) < 3 {
			continue
		}
		r.MoveTo(at(ps[0]))
		for _, p := range ps[1:] {
			r.LineTo(at(p))
		}
		r.ClosePath()
	}
	r.Draw(c.img, box, image.NewUniform(col), image.Point{})
}

func (c *canvas) rect(x0, y0, x1, y1 float64, col color.Color) {
	c.polygon([]point{{x0, y0}, {x1, y0}, {x1, y1}, {x0, y1}}, col)
}

// line draws a polyline.
func (c *canvas) line(ps []point, width float64, col color.Color) {
	var quads [][]point
	for i := 1; i < len(ps); i++ {
		if q := segment(ps[i-1], ps[i], width); q != nil {
			quads = append(quads, q)
		}
	}
	c.polygons(quads, col)
}

// dashed draws a polyline in dashes.
func (c *canvas) dashed(ps []point, width, dash, gap float64, col color.Color) {
	var quads [][]point
	phase := 0.0 // along dash and gap
	for i := 1; i < len(ps); i++ {
		a, b := ps[i-1], ps[i]
		length := math.Hypot(b.x-a.x, b.y-a.y)
		for done := 0.0; done < length; {
			step := min(length-done, dash-phase)
			if on := phase < dash; !on {
				step = min(length-done, dash+gap-phase)
			} else if q := segment(along(a, b, done/length), along(a, b, (done+step)/length), width); q != nil {
				quads = append(quads, q)
			}
			done += max(step, 1e-6)
			if phase += max(step, 1e-6); phase >= dash+gap-1e-6 {
				phase = 0
			}
		}
	}
	c.polygons(quads, col)
}

func along(a, b point, t float64) point { return point{a.x + t*(b.x-a.x), a.y + t*(b.y-a.y)} }

// segment is a line as a quad, a little longer than it is, so that joints close.
func segment(a, b point, width float64) []point {
	length := math.Hypot(b.x-a.x, b.y-a.y)
	if length == 0 {
		return nil
	}
	dx, dy := (b.x-a.x)/length*width/2, (b.y-a.y)/length*width/2
	a, b = point{a.x - dx/2, a.y - dy/2}, point{b.x + dx/2, b.y + dy/2}
	return []point{{a.x - dy, a.y + dx}, {b.x - dy, b.y + dx}, {b.x + dy, b.y - dx}, {a.x + dy, a.y - dx}}
}

func (c *canvas) face(size float64, bold bool) font.Face {
	key := faceKey{size, bold}
	if f := c.faces[key]; f != nil {
		return f
	}
	src := c.regular
	if bold {
		src = c.bold
	}
	f, err := opentype.NewFace(src, &opentype.FaceOptions{Size: size * c.scale, DPI: 72, Hinting: font.HintingNone})
	if err != nil {
		panic(err) // the options are constants of this package
	}
	c.faces[key] = f
	return f
}

// width is the width of a text in points.
func (c *canvas) width(s string, size float64, bold bool) float64 {
	return float64(font.MeasureString(c.face(size, bold), s)) / 64 / c.scale
}

// text writes s with its baseline at y.
func (c *canvas) text(x, y float64, s string, size float64, bold bool, a align, col color.Color) {
	x -= c.width(s, size, bold) * float64(a)
	d := font.Drawer{
		Dst: c.img, Src: image.NewUniform(col), Face: c.face(size, bold),
		Dot: fixed.Point26_6{X: fixed.Int26_6(x * c.scale * 64), Y: fixed.Int26_6(y * c.scale * 64)},
	}
	d.DrawString(s)
}

func rgb(hex uint32) color.NRGBA {
	return color.NRGBA{uint8(hex >> 16), uint8(hex >> 8), uint8(hex), 255}
}

func faded(c color.NRGBA, alpha float64) color.NRGBA {
	c.A = uint8(255 * alpha)
	return c
}
