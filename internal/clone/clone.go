// Package clone copies values the way that a database round trip does, for
// the in-memory twin: nothing is shared with the original, times keep
// milliseconds and are in UTC, and an empty slice or map comes back as none.
package clone

import (
	"reflect"
	"time"
)

// Of returns such a copy of v. Types must be plain data: structs of exported
// fields, pointers, slices, maps, strings, numbers, booleans and times.
func Of[T any](v T) T {
	var out T
	set(reflect.ValueOf(&out).Elem(), reflect.ValueOf(&v).Elem())
	return out
}

var timeType = reflect.TypeFor[time.Time]()

func set(dst, src reflect.Value) {
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			set(dst.Elem(), src.Elem())
		}
	case reflect.Struct:
		if src.Type() == timeType {
			t := src.Interface().(time.Time)
			if !t.IsZero() {
				t = t.Truncate(time.Millisecond).UTC()
			}
			dst.Set(reflect.ValueOf(t))
			return
		}
		for i := range src.NumField() {
			set(dst.Field(i), src.Field(i))
		}
	case reflect.Slice:
		if src.Len() > 0 {
			dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
			for i := range src.Len() {
				set(dst.Index(i), src.Index(i))
			}
		}
	case reflect.Map:
		if src.Len() > 0 {
			dst.Set(reflect.MakeMapWithSize(src.Type(), src.Len()))
			for it := src.MapRange(); it.Next(); {
				v := reflect.New(src.Type().Elem()).Elem()
				set(v, it.Value())
				dst.SetMapIndex(it.Key(), v)
			}
		}
	default:
		dst.Set(src)
	}
}
