/* xlm_dxgi.h, compiled as C and as C++ for Windows. */
#include <xlm/xlm_dxgi.h>

xlm_result use_dxgi(xlm_client *client, IDXGIAdapter3 *adapter);

xlm_result use_dxgi(xlm_client *client, IDXGIAdapter3 *adapter) {
    xlm_dxgi relay = XLM_DXGI_INIT;
    xlm_result result = xlm_dxgi_open(&relay, adapter);
    if (result == XLM_SUCCESS) result = xlm_dxgi_update(client, &relay);
    xlm_dxgi_close(&relay);
    return result;
}
