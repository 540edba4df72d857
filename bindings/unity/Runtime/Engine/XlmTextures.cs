using System;
using UnityEngine;

namespace Xlm.Unity
{
    /// <summary>Unity's pictures as a model is shown them.</summary>
    public static class XlmTextures
    {
        /// <summary>
        /// A readable texture. RGBA32, BGRA32 and RGB24 are taken as they are, at the cost of one copy; others go
        /// through GetPixels32. Alpha is ignored: that of a rendered frame means nothing.
        /// </summary>
        public static XlmImage ToXlmImage(this Texture2D texture)
        {
            if (texture == null) throw new ArgumentNullException("texture");
            switch (texture.format)
            {
                case TextureFormat.RGBA32: return FromRaw(texture, XlmImageFormat.Rgbx8, 4);
                case TextureFormat.BGRA32: return FromRaw(texture, XlmImageFormat.Bgrx8, 4);
                case TextureFormat.RGB24: return FromRaw(texture, XlmImageFormat.Rgb8, 3);
                default: return FromPixels(texture);
            }
        }

        // The first mip level comes first; what follows it is left out.
        private static XlmImage FromRaw(Texture2D texture, XlmImageFormat format, int pixelBytes)
        {
            byte[] data = texture.GetRawTextureData();
            return new XlmImage(
                data, format, texture.width, texture.height, texture.width * pixelBytes, bottomUp: true);
        }

        private static XlmImage FromPixels(Texture2D texture)
        {
            Color32[] pixels = texture.GetPixels32();
            byte[] data = new byte[4 * pixels.Length];
            for (int i = 0; i < pixels.Length; i++)
            {
                data[4 * i] = pixels[i].r;
                data[4 * i + 1] = pixels[i].g;
                data[4 * i + 2] = pixels[i].b;
                data[4 * i + 3] = pixels[i].a;
            }
            return new XlmImage(data, XlmImageFormat.Rgbx8, texture.width, texture.height, 0, bottomUp: true);
        }
    }
}
